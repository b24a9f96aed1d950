"""An expert that knows the solutions of tasks and works as mini-swe-agent's model does, by calls of its tool."""

from __future__ import annotations

import json
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from stacx_core.data.rendering import action_ids
from stacx_core.data.sample import Sample
from stacx_core.data.sources import named_options
from stacx_core.errors import ConfigError, TeacherError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn
from stacx_core.swe.agent.expert import solution_steps
from stacx_core.swe.tasks import Task, read_tasks

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What ends mini-swe-agent's work."""


class MiniSweExpert:
    """The teacher of ``--harness mini-swe`` that applies the solutions of ``--environment harbor:FOLDER``.

    It takes each task from what mini-swe-agent says of it, and does what is left to do.

    Args:
        args: With ``environment`` and ``apply_chat_template``.
        tokenizer: Of the policy, which is to learn the tokens.

    Raises:
        ConfigError: The environment is another.
        DataError: The folder has no tasks, or one is malformed.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase) -> None:
        scheme, _, name = (args.environment or "").partition(":")
        if scheme != "harbor":
            raise ConfigError(f"this expert knows tasks of --environment harbor:FOLDER, not of {args.environment!r}")
        self._tasks = read_tasks(named_options(name)[0])
        self._tokenizer, self._mode = tokenizer, args.apply_chat_template

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """An expert has no probabilities.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("this expert has no log-probs and can only act; use --teacher model to be scored")

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | Exception]:
        """One action per state, in order; an error where the task is not known or has no solution."""
        return [self._action(turn) for turn in turns]

    def _action(self, turn: TeacherTurn) -> TeacherAction | Exception:
        said = str(self._tokenizer.decode(list(turn.context)))
        task = next((task for task in self._tasks if task.instruction.strip() in said), None)
        if task is None:
            return TeacherError(f"the conversation is about no task that the expert knows: {said[:80]!r}")
        try:
            text = next_call(task, said)
        except TeacherError as error:
            return error
        return TeacherAction(action_ids(text, self._tokenizer, self._mode), text)


def next_call(task: Task, said: str) -> str:
    """What to do next in a task: the first of its steps that does not stand in the conversation.

    Raises:
        TeacherError: The task has no solution that could be written down.
    """
    for thought, command in solution_steps(task):
        if _written(command) not in said:
            return _call(thought, command)
    return _call("The task is done.", SUBMIT)


def _call(thought: str, command: str) -> str:
    return f'{thought}\n<tool_call>\n{{"name": "bash", "arguments": {{"command": {_written(command)}}}}}\n</tool_call>'


def _written(command: str) -> str:
    return json.dumps(command, ensure_ascii=False)
