"""Whole-batch stages: rewards to advantages, and whether rollout and trainer agree."""

from __future__ import annotations

import torch

from stacx_core import Args, Batch, BatchError
from stacx_plugin_diffusion.objectives import group_advantages
from stacx_plugin_diffusion.stepping import sampling_settings


def compute_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages``: each rollout's reward against those of its group, the same for all of its states.

    A rollout that was cut into several samples has one vote.
    """
    rollouts: dict[int, int] = {}
    for position, (rollout, removed) in enumerate(zip(batch["rollout_ids"], batch["removed"], strict=True)):
        if not removed:
            rollouts.setdefault(rollout, position)
    voters = list(rollouts.values())
    found = group_advantages(
        torch.tensor([float(batch["rewards"][position]) for position in voters]),
        torch.tensor([batch["group_indices"][position] for position in voters], dtype=torch.int64),
        std=args.advantage_std,
    )
    values = found.values.float().clamp(-args.advantage_clip, args.advantage_clip).tolist()
    of = dict(zip(rollouts, values, strict=True))
    counts = zip(batch["rollout_ids"], batch["response_lengths"], strict=True)
    batch["advantages"] = [torch.full((count,), of.get(rollout, 0.0)) for rollout, count in counts]
    return {"flat_groups": float(found.flat_share), "lone_groups": float(found.alone)}


def _check_settings(batch: Batch, args: Args) -> None:
    ours = sampling_settings(args)
    for index, notes in zip(batch["sample_indices"], batch["metadata"], strict=True):
        for name, value in (notes.get("sampling") or {}).items():
            if ours[name] != value:
                flag = "--" + name.replace("_", "-")
                raise BatchError(
                    f"sample {index} was drawn with {flag} {value} and cannot be replayed with {ours[name]}"
                )


def check_ratios(batch: Batch, args: Args) -> dict[str, float]:
    """Compare the settings and the log-probs of sampling with those of the trainer before its first update.

    Raises:
        BatchError: The settings differ, or a ratio is farther from 1 than ``--ratio-tolerance``.
    """
    _check_settings(batch, args)
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
