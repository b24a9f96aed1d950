"""An expert that knows the solutions of tasks and works as mini-swe-agent's model does, by calls of its tool."""

from __future__ import annotations

import json

from stacx_core.errors import TeacherError
from stacx_core.swe.agent.expert import SolutionExpert, solution_steps
from stacx_core.swe.tasks import Task

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What ends mini-swe-agent's work."""


class MiniSweExpert(SolutionExpert):
    """The same expert as the teacher of ``--harness mini-swe``: it knows a task by its text, and calls the tool."""

    def answer(self, said: str) -> str:
        """See :class:`SolutionExpert`."""
        task = next((task for task in self.tasks.values() if task.instruction.strip() in said), None)
        if task is None:
            raise TeacherError(f"the conversation is about no task that the expert knows: {said[:80]!r}")
        return next_call(task, said)


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
