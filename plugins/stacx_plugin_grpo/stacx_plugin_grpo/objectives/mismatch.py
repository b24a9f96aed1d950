"""Corrections for an engine whose probabilities differ from the trainer's.

With o the trainer's log-probs of the policy that sampled and b the engine's, every correction starts from the ratio
``w = exp(o - b)`` of a token or of its whole sequence. Weights (TIS, IcePop, MIS) and keep-masks (rejection, veto)
multiply the per-token policy loss after its own clipping. They have no gradient, and what they reject stays in the
denominators, so that rejecting tokens never makes the others weigh more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_plugin_grpo.objectives.sequences import bounded_exp, per_token, sequence_means, sequence_sums


def importance_ratios(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    level: str = "token",
) -> Tensor:
    """Ratio of the trainer's to the engine's probability, at every token ``[N]``, without gradient.

    Args:
        log_probs: ``[N]``, o.
        rollout_log_probs: ``[N]``, b.
        response_lengths, loss_masks: lengths and ``[R_i]`` masks of the B sequences.
        level: "token" for ``exp(o - b)``; "sequence" for the exponential of its sum over the trained tokens of the
            sequence; "geometric" for that of its mean. Exponents are clamped to +-20.

    Raises:
        ValueError: another level.
    """
    log_ratio = log_probs.detach() - rollout_log_probs.detach()
    if level == "token":
        return bounded_exp(log_ratio)
    if level not in ("sequence", "geometric"):
        raise ValueError(f"level is {level!r}; choose token, sequence or geometric")
    reduce = sequence_sums if level == "sequence" else sequence_means
    return per_token(bounded_exp(reduce(log_ratio, response_lengths, loss_masks)), response_lengths)


def importance_weights(
    ratios: Tensor, upper: float = 2.0, lower: float = 0.0, mode: str = "clip"
) -> tuple[Tensor, Tensor]:
    """Weights from ratios.

    Args:
        ratios: ``[N]``, from ``importance_ratios``.
        upper, lower: bounds.
        mode: "clip" to both bounds, "truncate" to the upper one only, or "mask" for 0 outside of the bounds, which at
            token level is IcePop.

    Returns:
        ``(weights [N], bounded [N])``; ``bounded`` is 1 where the weight is not the ratio.

    Raises:
        ValueError: another mode.
    """
    if mode == "clip":
        weights = ratios.clamp(lower, upper)
    elif mode == "truncate":
        weights = ratios.clamp(max=upper)
    elif mode == "mask":
        weights = ratios * inside(ratios, upper, lower)
    else:
        raise ValueError(f"mode is {mode!r}; choose clip, truncate or mask")
    return weights, (weights != ratios).to(ratios.dtype)


def truncated_importance_weights(
    log_probs: Tensor, rollout_log_probs: Tensor, clip: float = 2.0, clip_low: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling, TIS: ``w = clip(exp(o - b), clip_low, clip)`` of each token.

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training". Arguments and result as
    for ``importance_ratios`` and ``importance_weights``.
    """
    return importance_weights(importance_ratios(log_probs, rollout_log_probs, (), ()), clip, clip_low)


def inside(ratios: Tensor, upper: float, lower: float) -> Tensor:
    """Rejection sampling: ``[N]``, 1 where the ratio lies within the bounds and 0 elsewhere."""
    return ((ratios >= lower) & (ratios <= upper)).to(ratios.dtype)


def without_veto(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    threshold: float,
) -> Tensor:
    """``[N]``: 0 throughout a sequence one of whose trained tokens has a ratio below ``threshold``, else 1."""
    ratios = importance_ratios(log_probs, rollout_log_probs, response_lengths, loss_masks)
    vetoes = sequence_sums((ratios < threshold).to(ratios.dtype), response_lengths, loss_masks)
    return per_token((vetoes == 0).to(ratios.dtype), response_lengths)


def effective_sample_size(ratios: Tensor, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Tensor:
    """``[B]``: ``(sum m rho)^2 / (n sum m rho^2)`` of the ratios of each sequence, 0 where none is trained on.

    1 when all ratios are equal, ``1 / n`` when one outweighs all others (Kong 1992).
    """
    mean = sequence_means(ratios.double(), response_lengths, loss_masks)
    mean_square = sequence_means(ratios.double().square(), response_lengths, loss_masks)
    return torch.where(mean_square > 0, mean.square() / mean_square, 0.0)
