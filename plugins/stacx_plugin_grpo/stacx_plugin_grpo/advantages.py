"""Whole-batch stages that turn rewards into advantages, and what such stages have in common.

A stage runs before the batch is split. It writes keys and never changes a list or tensor in place, because the roles of
a run share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_core import Args, Batch
from stacx_plugin_grpo.objectives import compute_group_advantages, group_statistics
from stacx_plugin_grpo.objectives.group_advantages import Relative, centred, check_finite, standardised


def group_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """GRPO's estimator: the reward minus the mean of the group, over its standard deviation.

    See ``write_group_advantages``; ``--disable-grpo-std-normalization`` leaves the division out, and with
    ``--disable-rewards-normalization`` the reward itself is the advantage.
    """
    if args.disable_rewards_normalization:
        return write_group_advantages(batch, args, None)
    return write_group_advantages(batch, args, centred if args.disable_grpo_std_normalization else standardised)


def write_group_advantages(batch: Batch, args: Args, relative: Relative | None) -> dict[str, float]:
    """Write ``advantages``, one ``[R_i]`` float32 vector per sample, constant over its response tokens.

    One rule decides who votes in the statistics of a group: what cannot be trained on does not. A removed
    sample, one whose mask is all 0, and with ``--mask-truncated`` one that was cut at the limit neither vote
    nor get an advantage. ``--no-truncated-in-group-stats`` takes the vote, not the training, from every
    response that was cut.

    Args:
        batch: the whole rollout; reads ``rewards``, ``group_indices``, ``rollout_ids``, ``loss_masks``,
            ``truncated`` and ``response_lengths``.
        args: the knobs of the recipe.
        relative: what a reward is worth in its group; None for the reward itself.

    Returns:
        ``flat_group_frac`` (voting groups without any difference in reward), and the metrics of ``summary``.

    Raises:
        NonFiniteError: a reward that is trained on is NaN, or beyond float32.
        BatchError: a group of one under ``--group-of-one error``.
    """
    trained, rewards = trainable(batch), trained_rewards(batch)
    votes = [
        can_train and (args.truncated_in_group_stats or not cut)
        for can_train, cut in zip(trained, batch["truncated"], strict=True)
    ]
    of_samples = rewards, batch["group_indices"], batch["rollout_ids"], votes
    if relative is None:
        values = torch.tensor(rewards, dtype=torch.float32)
    else:
        values = compute_group_advantages(relative, *of_samples, group_of_one=args.group_of_one)
    values = values * torch.tensor(trained)
    batch["advantages"] = [
        value.repeat(length) for value, length in zip(values, batch["response_lengths"], strict=True)
    ]
    voting = [group.flat for group in group_statistics(*of_samples).values() if group.voters]
    return {"flat_group_frac": sum(voting) / max(len(voting), 1), **summary(batch)}


def trainable(batch: Batch) -> list[bool]:
    """Whether a sample has a token that is trained on."""
    return [bool(mask.any()) for mask in batch["loss_masks"]]


def trained_rewards(batch: Batch) -> list[float]:
    """The rewards, 0 in place of those of samples without trained tokens.

    Raises:
        NonFiniteError: a reward that is trained on is not finite in float32.
    """
    rewards = [r if can_train else 0.0 for r, can_train in zip(batch["rewards"], trainable(batch), strict=True)]
    check_finite(rewards)
    return rewards


def penalties(batch: Batch, args: Args) -> list[Tensor]:
    """What the divergence from the reference takes from the reward of each token, one ``[R_i]`` vector per sample."""
    if "kl" not in batch:
        return [torch.zeros(length) for length in batch["response_lengths"]]
    return [args.kl_coef * kl for kl in batch["kl"]]


def summary(batch: Batch) -> dict[str, float]:
    """``reward_mean`` and ``reward_std`` over trained samples; ``advantage_mean``, ``_std`` and ``_abs_max`` over
    trained tokens. Deviations are those of the population (n); all are 0 if nothing is trained."""
    rewards = [r for r, can_train in zip(batch["rewards"], trainable(batch), strict=True) if can_train]
    return {**moments("reward", torch.tensor(rewards)), **advantage_summary(batch)}


def advantage_summary(batch: Batch) -> dict[str, float]:
    """``advantage_mean``, ``advantage_std`` and ``advantage_abs_max`` over the trained tokens."""
    kept = trained_tokens(batch["advantages"], batch)
    return {**moments("advantage", kept), "advantage_abs_max": float(kept.abs().max()) if len(kept) else 0.0}


def trained_tokens(vectors: Sequence[Tensor], batch: Batch) -> Tensor:
    """The entries of per-sample ``[R_i]`` vectors at trained tokens, in one fp64 vector."""
    kept = [vector.double()[mask.bool()] for vector, mask in zip(vectors, batch["loss_masks"], strict=True)]
    return torch.cat(kept) if kept else torch.zeros(0, dtype=torch.float64)


def moments(name: str, values: Tensor) -> dict[str, float]:
    """Mean and standard deviation (n) of the values, 0 if there is none."""
    if not len(values):
        return {f"{name}_mean": 0.0, f"{name}_std": 0.0}
    values = values.double()
    return {f"{name}_mean": float(values.mean()), f"{name}_std": float(values.std(correction=0))}
