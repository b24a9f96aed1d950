"""A generated task of the reasoning-gym package as an environment of one turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stacx_core.data.reasoning_gym import create_dataset
from stacx_core.data.sources import named_options
from stacx_core.rewards.reasoning_gym import answer_text
from stacx_core.rollout.environment import Environment, Step


class ReasoningGymTask:
    """Asks one question and scores the answer as the data set does, from 0 to 1.

    Args:
        name: Data set of the package.
        options: Of the data set, but for ``size`` and ``seed``.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options
        self._entry: dict[str, Any] = {}

    def reset(self, seed: int) -> str:
        """The question of the seed."""
        options = {**self._options, "size": 1, "seed": seed}
        self._dataset = create_dataset(self._name, options, f"environment 'reasoning_gym:{self._name}'")
        self._entry = self._dataset[0]
        return str(self._entry["question"])

    def step(self, action: str) -> Step:
        """The score of what stands between the last ``<answer>`` tags, or of the whole action without any."""
        return Step("", float(self._dataset.score_answer(answer_text(action), self._entry)), done=True)

    def render(self) -> str:
        """Question and answer."""
        return f"{self._entry['question']}\n\nanswer: {self._entry['answer']}"

    def close(self) -> None:
        """Nothing to let go of."""


def reasoning_gym_task(text: str) -> Callable[[], Environment]:
    """What makes the environments of ``NAME[?OPTION=VALUE&...]``.

    Raises:
        DataError: Unknown data set, or an option it does not take.
        ConfigError: The package is not installed.
    """
    name, options = named_options(text)
    create_dataset(name, {**options, "size": 1, "seed": 0}, f"environment 'reasoning_gym:{text}'")
    return lambda: ReasoningGymTask(name, options)
