"""The expert as a model of the server, and episodes to write down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stacx_core.swe.agent.expert import next_action, task_in
from stacx_core.swe.evaluation.trajectory import Part, Trajectory
from stacx_core.swe.tasks import Task


@pytest.fixture
def expert() -> Callable[[list[Task]], Callable[[list[dict[str, str]]], str]]:
    """The expert as a model."""

    def build(tasks: list[Task]) -> Callable[[list[dict[str, str]]], str]:
        by_name = {task.name: task for task in tasks}

        def answer(messages: list[dict[str, str]]) -> str:
            said = "\n".join(message["content"] for message in messages)
            return next_action(task_in(said, by_name), said)

        return answer

    return build


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """A short episode."""

    def build(task: str = "a", sample: int = 0, outcome: str = "done", reward: float = 0.0, **more: Any) -> Trajectory:
        parts = [Part("environment", "Mend it.", 3), Part("student", "<b>&</b>", 5, 1)]
        return Trajectory(task, sample, outcome, reward, parts, **more)

    return build
