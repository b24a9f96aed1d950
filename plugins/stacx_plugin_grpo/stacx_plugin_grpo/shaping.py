"""Whole-batch stages around the estimator of a recipe. Each does nothing until its setting asks for it."""

from __future__ import annotations

import torch

from stacx_core import Args, Batch
from stacx_core.objectives import kl_estimate, where_masked
from stacx_plugin_grpo.advantages import advantage_summary, moments, trained_tokens
from stacx_plugin_grpo.objectives import importance_ratios, importance_weights, whiten


def overlong_penalty(length: int, limit: int, cache: int, factor: float = 1.0) -> float:
    """The soft punishment of long responses (DAPO, Yu et al. 2025, eq. 13), 0 to ``-factor``.

    It falls linearly over the last ``cache`` tokens before ``limit``: 0 up to ``limit - cache`` tokens, and
    ``-factor`` from ``limit`` on.
    """
    return -factor * min(max((length - (limit - cache)) / cache, 0.0), 1.0)


def shape_overlong(batch: Batch, args: Args) -> dict[str, float]:
    """Add ``overlong_penalty`` to ``rewards`` with ``--overlong-cache``; ``raw_reward`` stays as it is.

    Returns:
        ``overlong_frac``, the share of samples with a penalty.
    """
    if not args.overlong_cache:
        return {}
    added = [
        overlong_penalty(length, args.rollout_max_response_len, args.overlong_cache, args.overlong_factor)
        for length in batch["response_lengths"]
    ]
    batch["rewards"] = [reward + penalty for reward, penalty in zip(batch["rewards"], added, strict=True)]
    return {"overlong_frac": sum(penalty < 0 for penalty in added) / max(len(added), 1)}


def reward_kl(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``kl``, ``[R_i]`` estimates of the divergence from the reference, for ``--kl-coef``.

    Both log-probs are the trainer's, of the policy before its first update and of the reference; no gradient.

    Returns:
        ``reward_kl_mean`` and ``reward_kl_std`` over the trained tokens.
    """
    if not args.kl_coef:
        return {}
    pairs = zip(batch["log_probs"], batch["ref_log_probs"], strict=True)
    kind = args.get("kl_loss_type", "k1")
    batch["kl"] = [kl_estimate(policy, reference, kind) for policy, reference in pairs]
    return moments("reward_kl", trained_tokens(batch["kl"], batch))


def whiten_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Replace ``advantages`` by their whitened values with ``--normalize-advantages``.

    Returns:
        ``whitening_mean`` and ``whitening_std``, and the summary of the new advantages.

    Raises:
        BatchError: no token of the rollout is trained.
    """
    if not args.normalize_advantages:
        return {}
    batch["advantages"], mean, variance = whiten(batch["advantages"], batch["loss_masks"])
    return {"whitening_mean": mean, "whitening_std": variance**0.5, **advantage_summary(batch)}


def normalize_importance(batch: Batch, args: Args) -> dict[str, float]:
    """Make the mean of all importance weights 1 with ``--tis-batch-normalize``.

    The mean over the rollout is not known in a micro-batch. A policy loss scales with its advantages, so dividing these
    by the mean weight is the same as dividing the weights.

    Returns:
        ``tis_batch_mean``, the mean weight of the trained tokens.
    """
    if not args.tis_batch_normalize or not batch["tokens"]:
        return {}
    lengths, masks = batch["response_lengths"], batch["loss_masks"]
    mask = torch.cat(masks)
    policy, engine = (where_masked(torch.cat(batch[key]), mask) for key in ("log_probs", "rollout_log_probs"))
    ratios = importance_ratios(policy, engine, lengths, masks, args.tis_level)
    weights, _ = importance_weights(ratios, args.tis_clip, args.tis_clip_low, args.tis_mode)
    mean = moments("tis_batch", weights[mask.bool()])["tis_batch_mean"]
    if mean > 0:
        batch["advantages"] = [advantages / mean for advantages in batch["advantages"]]
    return {"tis_batch_mean": mean}
