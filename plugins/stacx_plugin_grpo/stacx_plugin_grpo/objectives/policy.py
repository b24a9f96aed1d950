"""Policy losses per token: the clipped surrogate of PPO, the sequence ratio of GSPO, and CISPO.

Inputs are flat ``[N]`` vectors over the response tokens of a micro-batch in which masked slots have been replaced
by 0 (``stacx_core.objectives.where_masked``), so that whatever stood there reaches neither the loss nor the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stacx_plugin_grpo.objectives.sequences import bounded_exp, per_token, sequence_means


class PolicyLoss(NamedTuple):
    """Per-token results of a clipped surrogate, all ``[N]``; only ``loss`` carries a gradient."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
) -> PolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), as a loss, with an optional dual clip.

    With ``rho = exp(log_ratio)`` and advantage A the loss is
    ``max(-rho A, -clip(rho, 1 - eps_clip, 1 + eps_clip_high) A)``, and where A < 0 at most ``-eps_clip_c A``
    (Ye et al. 2020, eq. 5). The exponent is clamped to +-20.

    Args:
        log_ratio: ``[N]``, with the gradient of the policy being trained.
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
    ratio = bounded_exp(log_ratio)
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


def ppo_clip_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
) -> PolicyLoss:
    """``clipped_surrogate`` of the ratio of each token, ``exp(s - o)``.

    Args:
        log_probs: ``[N]``, s, of the policy being trained.
        old_log_probs: ``[N]``, o, of the policy that the ratio is measured from; no gradient.
        advantages, eps_clip, eps_clip_high, eps_clip_c: as there.
    """
    return clipped_surrogate(log_probs - old_log_probs.detach(), advantages, eps_clip, eps_clip_high, eps_clip_c)


def sequence_log_ratio(
    log_probs: Tensor, old_log_probs: Tensor, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]
) -> Tensor:
    """GSPO's ratio, of the sequence instead of the token (Zheng et al. 2025, eq. 7), as a logarithm.

    ``log s_i = sum_t m (s - o) / n_i``: the geometric mean of the token ratios, at every token of the sequence, with
    its gradient. Under the sample mean, the gradient of an unclipped sequence is ``-s_i A_i / n_i sum_t m grad s``;
    other aggregations would weight sequences by their length.

    Args:
        log_probs, old_log_probs: ``[N]``, as for ``ppo_clip_loss``.
        response_lengths, loss_masks: lengths and ``[R_i]`` masks of the B sequences.

    Returns:
        ``[N]``, for ``clipped_surrogate``; 0 for a sequence without trained tokens.
    """
    means = sequence_means(log_probs - old_log_probs.detach(), response_lengths, loss_masks)
    return per_token(means, response_lengths)


def cispo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float | None = None
) -> tuple[Tensor, Tensor]:
    """Policy gradient with a clipped importance weight (MiniMax-M1, 2025, eq. 4 and 5).

    ``-sg(clip(exp(s - o), 1 - eps_clip, 1 + eps_clip_high)) A s``: clipping bounds the weight of a token and never
    takes its gradient away. ``eps_clip`` of 1 or more leaves the weight unbounded below. The value is not a measure
    of progress and may have either sign.

    Args:
        log_probs, old_log_probs, advantages, eps_clip, eps_clip_high: as for ``ppo_clip_loss``.

    Returns:
        ``(loss [N], clipped [N])``; ``clipped`` is 1 where a bound was active.
    """
    high = eps_clip if eps_clip_high is None else eps_clip_high
    ratio = bounded_exp(log_probs.detach() - old_log_probs.detach())
    weight = ratio.clamp(1 - eps_clip, 1 + high)
    return -weight * advantages.detach() * log_probs, (weight != ratio).to(ratio.dtype)
