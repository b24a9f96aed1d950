"""Rewards relative to the other responses to the same prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stacx_core import BatchError, NonFiniteError

LARGEST = torch.finfo(torch.float32).max
STD_EPSILON = 1e-6
ROUNDING = 1e-8
"""Numbers that differ by less than this, relative to the largest, are the same number."""


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of the rewards of one prompt group, over its voting rollouts.

    Args:
        votes: the mean reward of each voting rollout, by rollout id.
        mean: the mean of the votes, 0 without any.
        std: their sample standard deviation (n - 1), 0 for fewer than two.
        flat: at least two rollouts vote and all have the same reward.
    """

    votes: dict[int, float]
    mean: float
    std: float
    flat: bool

    @property
    def voters(self) -> int:
        """How many rollouts vote."""
        return len(self.votes)

    @classmethod
    def of(cls, votes: dict[int, float]) -> GroupStatistics:
        """The statistics of one reward per voting rollout."""
        rewards, voters = list(votes.values()), len(votes)
        if voters == 0:
            return cls(votes, 0.0, 0.0, False)
        mean = math.fsum(rewards) / voters
        if max(rewards) - min(rewards) <= ROUNDING * max(map(abs, rewards)):
            return cls(votes, mean, 0.0, voters > 1)
        return cls(votes, mean, math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (voters - 1)), False)


Relative = Callable[[float, int, GroupStatistics], float]
"""``(reward, rollout id, statistics of its group)`` -> advantage, where the votes of the group differ."""


def group_statistics(
    rewards: Sequence[float],
    group_indices: Sequence[int],
    rollout_ids: Sequence[int] | None = None,
    votes: Sequence[bool] | None = None,
) -> dict[int, GroupStatistics]:
    """Statistics of every group that occurs, keyed by group index.

    Samples that share a rollout id count once, by the mean reward of those that vote: otherwise a rollout
    that was cut into many samples would dominate its group.

    Args:
        rewards, group_indices, rollout_ids, votes: one entry per sample, as for ``compute_group_advantages``.
    """
    keys = range(len(rewards)) if rollout_ids is None else rollout_ids
    siblings: dict[int, dict[int, list[float]]] = {group: {} for group in group_indices}
    for i, (reward, group, key) in enumerate(zip(rewards, group_indices, keys, strict=True)):
        if votes is None or votes[i]:
            siblings[group].setdefault(key, []).append(reward)
    return {
        group: GroupStatistics.of({key: math.fsum(shared) / len(shared) for key, shared in rollouts.items()})
        for group, rollouts in siblings.items()
    }


def compute_group_advantages(
    relative: Relative,
    rewards: Sequence[float],
    group_indices: Sequence[int],
    rollout_ids: Sequence[int] | None = None,
    votes: Sequence[bool] | None = None,
    *,
    group_of_one: str = "zero",
) -> Tensor:
    """Each sample's reward relative to its prompt group.

    Groups are taken by index, never by position, so they may differ in size. A group whose voting rollouts all have
    one reward gets exactly 0, and so does a group in which nobody votes.

    Args:
        relative: what a reward is worth in a group whose votes differ.
        rewards: ``[B]``.
        group_indices: ``[B]``, the prompt group of each sample.
        rollout_ids: ``[B]``; samples that share one are parts of one rollout and count once. None: all differ.
        votes: ``[B]``, whether a sample counts in its group's statistics. None: all do.
        group_of_one: advantage where one rollout votes: "zero", "raw" for the reward itself, or "error".

    Returns:
        ``[B]`` float32, for every sample, those without a vote included.

    Raises:
        NonFiniteError: a reward is not finite in float32.
        BatchError: a group of one with ``group_of_one`` "error".
        ValueError: another ``group_of_one``.
    """
    if group_of_one not in ("zero", "raw", "error"):
        raise ValueError(f"group_of_one is {group_of_one!r}; choose zero, raw or error")
    check_finite(rewards)
    keys = range(len(rewards)) if rollout_ids is None else rollout_ids
    statistics = group_statistics(rewards, group_indices, keys, votes)
    lonely = [group for group, of_group in statistics.items() if of_group.voters == 1]
    if lonely and group_of_one == "error":
        raise BatchError(
            f"only one rollout of group {lonely[0]} votes, so it has nothing to be compared with; "
            "sample more per prompt, or pass --group-of-one zero or raw"
        )

    def value(reward: float, group: int, key: int) -> float:
        of_group = statistics[group]
        if of_group.voters == 1:
            return reward if group_of_one == "raw" else 0.0
        return 0.0 if of_group.flat or of_group.voters == 0 else relative(reward, key, of_group)

    values = [value(*row) for row in zip(rewards, group_indices, keys, strict=True)]
    return torch.tensor(values, dtype=torch.float32)


def check_finite(rewards: Sequence[float]) -> None:
    """Refuse rewards that float32, in which advantages are handed on, cannot hold.

    Raises:
        NonFiniteError: a reward is NaN, infinite or beyond float32.
    """
    for i, reward in enumerate(rewards):
        if not abs(reward) <= LARGEST:
            raise NonFiniteError(f"the reward of sample {i} is {reward}; rewards must lie within +-{LARGEST:.3g}")


def centred(reward: float, rollout: int, group: GroupStatistics) -> float:
    """``r - mean``: GRPO without its division (Dr. GRPO, Liu et al. 2025), and REINFORCE++'s baseline."""
    return reward - group.mean


def standardised(reward: float, rollout: int, group: GroupStatistics) -> float:
    """``(r - mean) / (std + 1e-6)``: GRPO (DeepSeekMath, Shao et al. 2024, section 4.1.2)."""
    return (reward - group.mean) / (group.std + STD_EPSILON)


def compute_grpo_advantages(
    rewards: Sequence[float],
    group_indices: Sequence[int],
    rollout_ids: Sequence[int] | None = None,
    votes: Sequence[bool] | None = None,
    *,
    std_normalization: bool = True,
    group_of_one: str = "zero",
) -> Tensor:
    """``compute_group_advantages`` with GRPO's ``(r - mean) / (std + 1e-6)``, or ``r - mean``.

    Args:
        rewards, group_indices, rollout_ids, votes, group_of_one: as there.
        std_normalization: divide by the standard deviation.
    """
    relative = standardised if std_normalization else centred
    return compute_group_advantages(relative, rewards, group_indices, rollout_ids, votes, group_of_one=group_of_one)
