"""Reward of a reasoning-gym task: the scorer its data set brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from stacx_core.data.reasoning_gym import EXTRA
from stacx_core.data.sample import Sample
from stacx_core.data.sources import require

OPEN, CLOSE = "<answer>", "</answer>"


def reasoning_gym(sample: Sample) -> float:
    """Score, from 0.0 to 1.0, of the response's last `<answer>...</answer>`, or of all of it without one.

    Raises:
        KeyError: the sample does not come from a `reasoning_gym:` source.
    """
    dataset, entry = sample.metadata["dataset"], sample.metadata["entry"]
    return float(_scorer(dataset)(answer_text(sample.response), entry))


def answer_text(response: str) -> str:
    """The text between the last pair of answer tags, or the whole response; without white space around it."""
    head, close, _ = response.rpartition(CLOSE)
    _, opened, answer = head.rpartition(OPEN)
    return (answer if close and opened else response).strip()


@cache
def _scorer(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    package = require("reasoning_gym", EXTRA, f"the reward of the reasoning_gym data set {dataset!r}")
    scorer: Callable[[str, dict[str, Any]], float] = package.get_score_answer_fn(dataset)
    return scorer
