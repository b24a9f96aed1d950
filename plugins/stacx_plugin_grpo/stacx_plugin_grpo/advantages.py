"""The whole-batch stage that turns rewards into advantages, before the batch is split."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_core import Args, Batch
from stacx_plugin_grpo.objectives import compute_grpo_advantages, group_statistics


def group_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages``, one ``[R_i]`` float32 vector per sample, constant over its response tokens.

    One rule decides who votes in the statistics of a group: what cannot be trained on does not. A removed
    sample, one whose mask is all 0, and with ``--mask-truncated`` one that was cut at the limit neither vote
    nor get an advantage. ``--no-truncated-in-group-stats`` takes the vote, not the training, from every
    response that was cut.

    Args:
        batch: the whole rollout; reads ``rewards``, ``group_indices``, ``rollout_ids``, ``loss_masks``,
            ``truncated`` and ``response_lengths``.
        args: the knobs of the recipe.

    Returns:
        ``flat_group_frac`` (voting groups without any difference in reward), ``reward_mean``, ``reward_std``,
        ``advantage_mean``, ``advantage_std`` and ``advantage_abs_max``, over the samples that are trained on.

    Raises:
        NonFiniteError: a reward that is trained on is NaN, or beyond float32.
        BatchError: a group of one under ``--group-of-one error``.
    """
    trained = [bool(mask.any()) for mask in batch["loss_masks"]]
    votes = [
        can_train and (args.truncated_in_group_stats or not cut)
        for can_train, cut in zip(trained, batch["truncated"], strict=True)
    ]
    rewards = [r if can_train else 0.0 for r, can_train in zip(batch["rewards"], trained, strict=True)]
    groups, rollouts = batch["group_indices"], batch["rollout_ids"]
    if args.disable_rewards_normalization:
        values = torch.tensor(rewards, dtype=torch.float32)
    else:
        values = compute_grpo_advantages(
            rewards,
            groups,
            rollouts,
            votes,
            std_normalization=not args.disable_grpo_std_normalization,
            group_of_one=args.group_of_one,
        )
    values = values * torch.tensor(trained)
    batch["advantages"] = [
        value.repeat(length) for value, length in zip(values, batch["response_lengths"], strict=True)
    ]
    voting = [g.flat for g in group_statistics(rewards, groups, rollouts, votes).values() if g.voters]
    return {
        "flat_group_frac": sum(voting) / max(len(voting), 1),
        **_summary("reward", torch.tensor(rewards), trained),
        **_summary("advantage", values, trained),
        "advantage_abs_max": float(values.abs().max()) if len(values) else 0.0,
    }


def _summary(name: str, values: Tensor, trained: Sequence[bool]) -> dict[str, float]:
    """Mean and standard deviation (n) over the trained samples, 0 if there is none."""
    kept = values.double()[torch.tensor(trained, dtype=torch.bool)]
    if not len(kept):
        return {f"{name}_mean": 0.0, f"{name}_std": 0.0}
    return {f"{name}_mean": float(kept.mean()), f"{name}_std": float(kept.std(correction=0))}
