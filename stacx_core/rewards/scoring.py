"""Applying a reward function to samples, with every failure named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, SupportsFloat

from stacx_core.data.sample import Sample
from stacx_core.errors import ModelError, RewardError

Reward = float | dict[str, float]
RewardFn = Callable[[Sample], Reward]
"""A reward function: reads `response`, `label` and `metadata` of the sample, and changes nothing."""


class BatchReward(Protocol):
    """A reward that is cheaper for many samples at once than for each."""

    def score_batch(self, samples: Sequence[Sample]) -> Sequence[Reward]:
        """One reward per sample, in order."""


Scorer = RewardFn | BatchReward


def score(samples: Iterable[Sample], reward: Scorer) -> None:
    """Set `reward` of every sample that is not removed.

    Raises:
        RewardError: naming sample, task and function, when the function raises, or returns anything but a
            finite number or a dict of them. A failure never turns into a number.
    """
    judged = [sample for sample in samples if not sample.removed]
    name = f"{reward.__module__}:{reward.__qualname__}" if hasattr(reward, "__qualname__") else type(reward).__name__
    if hasattr(reward, "score_batch"):
        values = _batch(reward, judged, name)
    else:
        values = [_one(reward, sample, name) for sample in judged]
    for sample, value in zip(judged, values, strict=True):
        sample.reward = _checked(value, f"reward {name} on {sample.describe()}")


def _one(reward: RewardFn, sample: Sample, name: str) -> Any:
    try:
        return reward(sample)
    except (Exception, SystemExit) as error:
        raise RewardError(f"reward {name} on {sample.describe()}: {type(error).__name__}: {error}") from error


def _batch(reward: BatchReward, samples: Sequence[Sample], name: str) -> Sequence[Any]:
    try:
        values = reward.score_batch(samples)
    except (RewardError, ModelError):
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(f"reward {name} on {len(samples)} samples: {type(error).__name__}: {error}") from error
    if len(values) != len(samples):
        raise RewardError(f"reward {name}: score_batch returned {len(values)} rewards for {len(samples)} samples")
    return values


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
