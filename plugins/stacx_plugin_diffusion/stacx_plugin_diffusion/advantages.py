"""Whole-batch stages: rewards to advantages, and whether rollout and trainer agree."""

from __future__ import annotations

import torch

from stacx_core import Args, Batch, BatchError, sub_seed
from stacx_plugin_diffusion.objectives import group_advantages


def compute_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages``: each sample's reward against those of its group, the same for all of its states."""
    rewards = torch.tensor([float(reward) for reward in batch["rewards"]])
    counted = ~torch.tensor(batch["removed"], dtype=torch.bool)
    found = group_advantages(rewards, torch.tensor(batch["group_indices"]), std=args.advantage_std, counted=counted)
    values = found.values.clamp(-args.advantage_clip, args.advantage_clip)
    if args.shuffle_advantages:
        seed = sub_seed(args.seed, "shuffle", len(rewards), int(1e6 * float(rewards.nansum())))
        values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))]
    batch["advantages"] = [
        value.float().expand(count).clone() for value, count in zip(values, batch["response_lengths"], strict=True)
    ]
    return {"flat_groups": float(found.flat_share), "lone_groups": float(found.alone)}


def check_ratios(batch: Batch, args: Args) -> dict[str, float]:
    """Compare the log-probs of sampling with those of the trainer before its first update.

    Raises:
        BatchError: A ratio is farther from 1 than ``--ratio-tolerance``.
    """
    if not args.ratio_tolerance:
        return {}
    worst, where, total, count = 0.0, "", 0.0, 0
    for position, mask in enumerate(batch["loss_masks"]):
        trained = mask.bool()
        if not trained.any():
            continue
        difference = (batch["log_probs"][position] - batch["rollout_log_probs"][position])[trained]
        total, count = total + float(difference.abs().sum()), count + int(trained.sum())
        off = float(difference.expm1().abs().max())
        if not off <= worst:
            worst, where = off, f"sample {batch['sample_indices'][position]}"
    if not worst <= args.ratio_tolerance:
        raise BatchError(
            f"{where}: before any update a ratio is {worst:.3g} off 1, more than --ratio-tolerance "
            f"{args.ratio_tolerance:g}: sampling and training do not compute the same steps",
            "compare schedule, guidance and precision of both; latents must be kept in fp32",
        )
    return {"ratio_error": worst, "log_prob_difference": total / max(count, 1)}
