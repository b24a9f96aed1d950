"""Group-relative advantages, the clipped policy loss, and the correction of engine mismatch.

Pure functions. Per-token inputs are flat ``[N]`` vectors over the response tokens of a micro-batch in which
masked slots have been replaced by 0 (``stacx_core.objectives.where_masked``), so that whatever stood there
reaches neither the loss nor the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stacx_core import BatchError, NonFiniteError

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, so that no ratio overflows fp32."""

STD_EPSILON = 1e-6
ROUNDING = 1e-8
"""Rewards of a group that differ by less than this, relative to the largest, are the same reward."""

LARGEST = torch.finfo(torch.float32).max


class PolicyLoss(NamedTuple):
    """Per-token results of ``ppo_clip_loss``, all ``[N]``; only ``loss`` carries a gradient."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def ppo_clip_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
) -> PolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), as a loss, with an optional dual clip.

    With ``rho = exp(s - o)`` and advantage A the loss is
    ``max(-rho A, -clip(rho, 1 - eps_clip, 1 + eps_clip_high) A)``, and where A < 0 at most ``-eps_clip_c A``
    (Ye et al. 2020, eq. 5). The exponent is clamped to +-20.

    Args:
        log_probs: ``[N]``, of the policy being trained.
        old_log_probs: ``[N]``, of the policy that the ratio is measured from; no gradient.
        advantages: ``[N]``; no gradient.
        eps_clip: lower clip distance.
        eps_clip_high: upper clip distance, ``eps_clip`` if None.
        eps_clip_c: the dual clip, greater than 1; None for no bound.

    Returns:
        The loss, the ratio, and indicators (0 or 1) of tokens whose loss the clip or the dual clip replaced.

    Raises:
        ValueError: ``eps_clip_c`` not greater than 1.
    """
    if eps_clip_c is not None and not eps_clip_c > 1:
        raise ValueError(f"eps_clip_c must be greater than 1, got {eps_clip_c}: it bounds ratios above 1")
    high = eps_clip if eps_clip_high is None else eps_clip_high
    advantages = advantages.detach()
    ratio = _exp(log_probs - old_log_probs.detach())
    unclipped = -ratio * advantages
    bounded = -ratio.clamp(1 - eps_clip, 1 + high) * advantages
    loss = torch.maximum(unclipped, bounded)
    clipped = (bounded > unclipped).to(loss.dtype)
    dual_clipped = torch.zeros_like(clipped)
    if eps_clip_c is not None:
        ceiling = -eps_clip_c * advantages
        over = (advantages < 0) & (loss > ceiling)
        loss, dual_clipped = torch.where(over, ceiling, loss), over.to(loss.dtype)
    return PolicyLoss(loss, ratio.detach(), clipped, dual_clipped)


def truncated_importance_weights(
    log_probs: Tensor, rollout_log_probs: Tensor, clip: float = 2.0, clip_low: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Weights that correct for an engine whose probabilities differ from the trainer's (TIS).

    ``w = clip(exp(o - b), clip_low, clip)``, to multiply the per-token policy loss after its own clipping
    (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").

    Args:
        log_probs: ``[N]``, the trainer's log-probs of the policy that sampled.
        rollout_log_probs: ``[N]``, the engine's, from when it sampled.
        clip, clip_low: bounds of the weights.

    Returns:
        ``(weights [N], clipped [N])`` without gradient; ``clipped`` is 1 where a bound was active.
    """
    raw = _exp(log_probs.detach() - rollout_log_probs.detach())
    weights = raw.clamp(clip_low, clip)
    return weights, (weights != raw).to(raw.dtype)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of the rewards of one prompt group, over its voting rollouts.

    Args:
        voters: voting rollouts.
        mean: their mean reward, 0 without voters.
        std: sample standard deviation (n - 1), 0 for fewer than two voters.
        flat: at least two rollouts vote and all have the same reward.
    """

    voters: int
    mean: float
    std: float
    flat: bool

    @classmethod
    def of(cls, rewards: Sequence[float]) -> GroupStatistics:
        """The statistics of one reward per voting rollout."""
        voters = len(rewards)
        if voters == 0:
            return cls(0, 0.0, 0.0, False)
        mean = math.fsum(rewards) / voters
        if max(rewards) - min(rewards) <= ROUNDING * max(map(abs, rewards)):
            return cls(voters, mean, 0.0, voters > 1)
        return cls(voters, mean, math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (voters - 1)), False)


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
        rewards, group_indices, rollout_ids, votes: one entry per sample, as for ``compute_grpo_advantages``.

    Raises:
        NonFiniteError: a reward is NaN, or beyond float32.
    """
    for i, reward in enumerate(rewards):
        if not abs(reward) <= LARGEST:
            raise NonFiniteError(
                f"the reward of sample {i} (group {group_indices[i]}) is {reward}; "
                f"advantages are float32, so a reward must lie within +-{LARGEST:.3g}"
            )
    keys = range(len(rewards)) if rollout_ids is None else rollout_ids
    siblings: dict[int, dict[int, list[float]]] = {group: {} for group in group_indices}
    for i, (reward, group, key) in enumerate(zip(rewards, group_indices, keys, strict=True)):
        if votes is None or votes[i]:
            siblings[group].setdefault(key, []).append(reward)
    return {
        group: GroupStatistics.of([math.fsum(shared) / len(shared) for shared in rollouts.values()])
        for group, rollouts in siblings.items()
    }


def compute_grpo_advantages(
    rewards: Sequence[float],
    group_indices: Sequence[int],
    rollout_ids: Sequence[int] | None = None,
    votes: Sequence[bool] | None = None,
    *,
    std_normalization: bool = True,
    group_of_one: str = "zero",
) -> Tensor:
    """Each sample's reward relative to its prompt group (DeepSeekMath, Shao et al. 2024, section 4.1.2).

    ``A_i = (r_i - mean_g) / (std_g + 1e-6)``, and ``A_i = r_i - mean_g`` without ``std_normalization``
    (Dr. GRPO, Liu et al. 2025). Groups are taken by index, never by position, so they may differ in size. A
    group whose voting rollouts all have one reward gets exactly 0, and so does a group in which nobody votes.

    Args:
        rewards: ``[B]``.
        group_indices: ``[B]``, the prompt group of each sample.
        rollout_ids: ``[B]``; samples that share one are parts of one rollout and count once. None: all
            differ.
        votes: ``[B]``, whether a sample counts in its group's statistics. None: all do.
        std_normalization: divide by the standard deviation.
        group_of_one: advantage where one rollout votes: "zero", "raw" for the reward itself, or "error".

    Returns:
        ``[B]`` float32, for every sample, those without a vote included.

    Raises:
        NonFiniteError: a reward is NaN, or beyond float32.
        BatchError: a group of one with ``group_of_one`` "error".
        ValueError: another ``group_of_one``.
    """
    if group_of_one not in ("zero", "raw", "error"):
        raise ValueError(f"group_of_one is {group_of_one!r}; choose zero, raw or error")
    statistics = group_statistics(rewards, group_indices, rollout_ids, votes)
    lonely = [group for group, of_group in statistics.items() if of_group.voters == 1]
    if lonely and group_of_one == "error":
        raise BatchError(
            f"only one rollout of group {lonely[0]} votes, so it has nothing to be compared with; "
            "sample more per prompt, or pass --group-of-one zero or raw"
        )
    values = []
    for reward, group in zip(rewards, group_indices, strict=True):
        of_group = statistics[group]
        if of_group.voters == 1:
            values.append(reward if group_of_one == "raw" else 0.0)
        elif of_group.flat or of_group.voters == 0:
            values.append(0.0)
        else:
            scale = of_group.std + STD_EPSILON if std_normalization else 1.0
            values.append((reward - of_group.mean) / scale)
    return torch.tensor(values, dtype=torch.float32)
