"""An expert that knows the solutions of tasks and works through bash as any agent would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.rendering import action_ids
from stacx_core.data.sample import Sample
from stacx_core.data.sources import named_options
from stacx_core.errors import ConfigError, TeacherError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn
from stacx_core.swe.agent.actions import SUBMIT, bash_block
from stacx_core.swe.agent.words import TASK_LINE
from stacx_core.swe.tasks import Task, read_tasks

PLACE = "/tmp/solution"
"""Where the expert writes the solution in the sandbox."""


class SolutionExpert:
    """The teacher of ``--environment harbor:FOLDER`` that applies the folder's solutions.

    It learns from the conversation which task it is in and what was done in it, also by others, and does what is left
    to do: look at the files, apply the solution, check it, submit.

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
        self.tasks = {task.name: task for task in read_tasks(named_options(name)[0])}
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
        try:
            text = self.answer(said)
        except TeacherError as error:
            return error
        return TeacherAction(action_ids(text, self._tokenizer, self._mode), text)

    def answer(self, said: str) -> str:
        """What to say next in a conversation.

        Raises:
            TeacherError: The task is not known, or has no solution that could be written down.
        """
        return next_action(task_in(said, self.tasks), said)


def task_in(said: str, tasks: dict[str, Task]) -> Task:
    """The task that a conversation is about.

    Args:
        said: All of it, the first message included.
        tasks: By name.

    Raises:
        TeacherError: It names none of them.
    """
    found = re.search(rf"{TASK_LINE}(.+)", said)
    if found is None or found[1] not in tasks:
        raise TeacherError(f"the conversation is about no task that the expert knows: {said[:80]!r}")
    return tasks[found[1]]


def next_action(task: Task, said: str) -> str:
    """What to do next in a task: the first of its steps whose command does not stand in the conversation.

    Raises:
        TeacherError: The task has no solution that could be written down.
    """
    for thought, command in solution_steps(task):
        if command not in said:
            return f"{thought}\n\n{bash_block(command)}"
    return f"The task is done.\n\n{bash_block(SUBMIT)}"


def solution_steps(task: Task) -> list[tuple[str, str]]:
    """Thought and command of each step towards the solution of a task.

    Raises:
        TeacherError: It has no ``solution/solve.sh``, or a file there is not text.
    """
    if task.solution is None:
        raise TeacherError(f"{task.folder} has no solution/solve.sh for the expert")
    files = {path.relative_to(task.solution).as_posix(): path for path in sorted(task.solution.rglob("*"))}
    try:
        texts = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except UnicodeDecodeError as error:
        raise TeacherError(f"{task.solution} has a file that is not UTF-8: {error}") from error
    changed = _changed_files(texts)
    shown = " ".join(map(shlex.quote, changed))
    look = "find . -type f -not -path '*/.*' | sort | head -n 50" + (f"; cat {shown}" if changed else "")
    steps = [
        ("I look at the files first.", look),
        ("I see what is wrong, and change it.", _applied(texts)),
    ]
    return [*steps, ("I check what I changed.", _checked(changed))] if changed else steps


def _changed_files(texts: dict[str, str]) -> list[str]:
    """The files that the patches of a solution change, relative to the working folder."""
    found = [re.findall(r"^\+\+\+ b/(\S+)", text, re.M) for name, text in texts.items() if name.endswith(".patch")]
    return list(dict.fromkeys(file for names in found for file in names))


def _applied(texts: dict[str, str]) -> str:
    folders = sorted({f"{PLACE}/{name}".rpartition("/")[0] for name in texts})
    return "\n".join([shlex.join(["mkdir", "-p", *folders]), *map(_written, texts.items()), f"bash {PLACE}/solve.sh"])


def _written(file: tuple[str, str]) -> str:
    name, text = file
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    ending = "" if text.endswith("\n") or not text else "\n"
    return f"cat > {shlex.quote(f'{PLACE}/{name}')} << '{end}'\n{text}{ending}{end}"


def _checked(changed: list[str]) -> str:
    checks: Any = {".py": "python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())'", ".sh": "bash -n"}
    lines = [f"{checks[name[-3:]]} {shlex.quote(name)}" for name in changed if name[-3:] in checks]
    return " &&\n".join([*lines, f"tail -n 20 {' '.join(map(shlex.quote, changed))}"])
