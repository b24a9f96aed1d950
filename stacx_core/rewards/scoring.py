"""Applying a reward function to samples, with every failure named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, SupportsFloat

from stacx_core.data.sample import Sample
from stacx_core.errors import RewardError

Reward = float | dict[str, float]
RewardFn = Callable[[Sample], Reward]
"""A reward function: reads `response`, `label` and `metadata` of the sample, and changes nothing."""


def score(samples: Iterable[Sample], reward_fn: RewardFn) -> None:
    """Set `reward` of every sample that is not removed.

    Raises:
        RewardError: naming sample, task and function, when the function raises, or returns anything but a
            finite number or a dict of them. A failure never turns into a number.
    """
    name = f"{reward_fn.__module__}:{reward_fn.__qualname__}" if hasattr(reward_fn, "__qualname__") else repr(reward_fn)
    for sample in samples:
        if sample.removed:
            continue
        where = f"reward {name} on {sample.describe()}"
        try:
            value = reward_fn(sample)
        except (Exception, SystemExit) as error:
            raise RewardError(f"{where}: {type(error).__name__}: {error}") from error
        sample.reward = _checked(value, where)


def _checked(value: Any, where: str) -> Reward:
    if isinstance(value, dict):
        if not value:
            raise RewardError(f"{where}: returned an empty dict; name at least one reward")
        return {str(key): _number(entry, f"{where}, entry {key!r}") for key, entry in value.items()}
    return _number(value, where)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value) if isinstance(value, SupportsFloat) else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = None
    if number is None:
        raise RewardError(f"{where}: returned {value!r}; a reward is a number or a dict of numbers")
    if not math.isfinite(number):
        raise RewardError(f"{where}: returned {number}; a reward must be finite")
    return number
