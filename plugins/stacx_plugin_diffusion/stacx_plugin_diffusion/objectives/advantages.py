"""Rewards relative to the other samples of the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.reductions import require_same_shape, upcast

ADVANTAGE_STDS = ("group", "global", "none")
REWARD_COMBINATIONS = ("sum", "gdpo")
STD_EPSILON = 1e-4


class Advantages(NamedTuple):
    """Advantages of a whole batch.

    Args:
        values: ``[N]``, dtype of the rewards upcast.
        informative: ``[N]`` bool: the samples of groups whose rewards differ. The others have advantage 0 exactly
            and may be dropped.
        flat_share: 0-d: the share of groups, of those with a counted sample, whose rewards do not differ.
        alone: 0-d int64: how many groups have one counted sample, which can never differ from itself.
    """

    values: Tensor
    informative: Tensor
    flat_share: Tensor
    alone: Tensor


class _Groups(NamedTuple):
    """Statistics per group ``[G]`` in float64, and the group of each sample ``[N]``."""

    of_sample: Tensor
    size: Tensor
    mean: Tensor
    std: Tensor
    flat: Tensor


def group_advantages(
    rewards: Tensor, group_ids: Tensor, *, std: str = "global", counted: Tensor | None = None
) -> Advantages:
    """``(r - mean of the group) / (std + 1e-4)``.

    Standard deviations are of the population (divided by n). A group whose rewards are all equal has advantage 0
    exactly, and so has a group of one. Groups are taken by id, never by position or prompt text.

    Args:
        rewards: ``[N]`` of the whole batch, gathered from all ranks.
        group_ids: ``[N]`` int64.
        std: of the ``group`` (Shao et al. 2024, GRPO, arXiv 2402.03300); ``global``, of all rewards as they are,
            as in Flow-GRPO and DiffusionNFT; ``none``, no division (Liu et al. 2025, Dr. GRPO, arXiv 2503.20783).
        counted: ``[N]`` bool, samples with a usable reward; the others count nowhere and get 0. None: all.

    Raises:
        ValueError: an unknown ``std``, shapes that differ, or a counted reward that is not finite.
    """
    if std not in ADVANTAGE_STDS:
        raise ValueError(f"advantage std {std!r} is unknown; choose one of {', '.join(ADVANTAGE_STDS)}")
    require_same_shape(rewards=rewards, group_ids=group_ids)
    counted = torch.ones_like(rewards, dtype=torch.bool) if counted is None else counted.bool()
    require_same_shape(rewards=rewards, counted=counted)
    if not rewards[counted].isfinite().all():
        raise ValueError("rewards must be finite; leave the samples whose reward is not out of `counted`")
    values = torch.where(counted, rewards.double(), 0.0)
    groups = _group_statistics(values, group_ids, counted)
    centered = values - groups.mean[groups.of_sample]
    informative = counted & ~groups.flat[groups.of_sample]
    if std == "group":
        centered = centered / (groups.std[groups.of_sample] + STD_EPSILON)
    elif std == "global" and counted.any():
        centered = centered / (values[counted].std(correction=0) + STD_EPSILON)
    present = groups.size > 0
    return Advantages(
        torch.where(informative, centered, 0.0).to(upcast(rewards).dtype),
        informative,
        (groups.flat & present).sum() / present.sum().clamp(min=1),
        (groups.size == 1).sum(),
    )


def _group_statistics(values: Tensor, group_ids: Tensor, counted: Tensor) -> _Groups:
    """Statistics over the counted samples; a group without any is flat."""
    names, index = torch.unique(group_ids, return_inverse=True)
    zeros = values.new_zeros(len(names))
    size = zeros.index_add(0, index, counted.to(values.dtype))
    divisor = size.clamp(min=1)
    mean = zeros.index_add(0, index, values) / divisor
    deviation = torch.where(counted, values - mean[index], 0.0)
    std = (zeros.index_add(0, index, deviation.square()) / divisor).sqrt()
    # By comparison, not by the std: the mean of equal numbers may differ from them in the last digit.
    low = (zeros + torch.inf).scatter_reduce(0, index[counted], values[counted], "amin")
    high = (zeros - torch.inf).scatter_reduce(0, index[counted], values[counted], "amax")
    return _Groups(index, size.long(), mean, std, ~(high > low))


def multi_reward_advantages(
    rewards: Mapping[str, Tensor],
    weights: Mapping[str, float],
    group_ids: Tensor,
    *,
    combine: str = "sum",
    std: str = "global",
    counted: Tensor | None = None,
) -> Advantages:
    """Advantages of several rewards at once.

    ``sum`` weighs and adds the rewards, so that one with a wide range drowns the others; ``gdpo`` normalises each by
    itself and adds the weighted advantages (Liu et al. 2026, GDPO, arXiv 2601.05242). Samples are informative for
    ``gdpo`` if they are for any of the rewards; its ``flat_share`` is the mean over rewards.

    Args:
        rewards: ``[N]`` each, by name.
        weights: one per name.
        group_ids, std, counted: as for ``group_advantages``.

    Raises:
        ValueError: an unknown ``combine``, no reward, other names in ``weights`` than in ``rewards``, or as there.
    """
    if combine not in REWARD_COMBINATIONS:
        raise ValueError(f"combination {combine!r} is unknown; choose one of {', '.join(REWARD_COMBINATIONS)}")
    if not rewards or set(rewards) != set(weights):
        raise ValueError(f"give one weight per reward; rewards {sorted(rewards)}, weights {sorted(weights)}")
    names = sorted(rewards)
    if combine == "sum":
        total = torch.stack([weights[name] * upcast(rewards[name]) for name in names]).sum(0)
        return group_advantages(total, group_ids, std=std, counted=counted)
    parts = [group_advantages(rewards[name], group_ids, std=std, counted=counted) for name in names]
    return Advantages(
        torch.stack([weights[name] * part.values for name, part in zip(names, parts, strict=True)]).sum(0),
        torch.stack([part.informative for part in parts]).any(0),
        torch.stack([part.flat_share for part in parts]).mean(),
        parts[0].alone,
    )
