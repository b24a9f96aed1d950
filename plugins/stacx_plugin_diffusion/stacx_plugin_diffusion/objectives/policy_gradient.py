"""The clipped policy gradient of one denoising step, and GRPO-Guard's ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.flow import Terms
from stacx_plugin_diffusion.objectives.reductions import bounded_exp, require_same_shape
from stacx_plugin_diffusion.objectives.transitions import Transition, transition_kl


def clipped_terms(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    clip: float | None,
    clip_high: float | None = None,
    advantage_clip: float | None = None,
) -> Terms:
    """``max(-rho A, -clip(rho, 1 - clip, 1 + clip_high) A)`` with ``rho = exp(log_prob - old_log_prob)``.

    PPO (Schulman et al. 2017, arXiv 1707.06347, eq. 7) for each of the N pairs of a sample and a denoising step, as
    Flow-GRPO (arXiv 2505.05470) has it. With log-probs that are means over dimensions, as those of
    ``transitions.log_prob``, clip ranges are far smaller than for text: 1e-5 to 1e-2, by the size of the latents.

    Args:
        log_prob: ``[N]``, with the gradient of the policy.
        old_log_prob: ``[N]``, of the policy that sampled; ``log_prob`` itself on strictly on-policy data.
        advantages: ``[N]``, of the sample of each pair.
        clip: distance of the lower bound; None for no bound on either side.
        clip_high: of the upper one, ``clip`` if None.
        advantage_clip: advantages are first clamped to +- this.

    Returns:
        The terms, and ``ratio``, ``below`` and ``above`` (1 where the ratio is out of the range on that side,
        whatever the sign of the advantage), and ``neg_log_ratio``: an estimate of KL(old || new).

    Raises:
        ValueError: shapes that differ.
    """
    require_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantages=advantages)
    return _clipped(log_prob - old_log_prob.detach(), advantages, clip, clip_high, advantage_clip)


def guard_terms(
    log_prob: Tensor,
    old_log_prob: Tensor,
    step: Transition,
    old_step: Transition,
    advantages: Tensor,
    clip: float | None,
    clip_high: float | None = None,
    advantage_clip: float | None = None,
    mask: Tensor | None = None,
) -> Terms:
    """``clipped_terms`` of a ratio without bias and of one scale at all steps, over h (GRPO-Guard, arXiv 2510.22319).

    ``log rho = std (log_prob - old_log_prob + mean_dims (mean - mean_old)^2 / (2 std^2))``, which for a state drawn as
    ``mean_old + std z`` is ``mean_dims z (mean - mean_old)``: the plain log-ratio is negative on average, so that
    its clip acts on one side more than on the other. Dividing by h evens out the gradients of the steps. For
    ``flow_sde`` and ``dance_sde``.

    Args:
        log_prob, old_log_prob: ``[N]`` Gaussian log-probs, means over dimensions.
        step: with the gradient of the policy.
        old_step: of the policy that sampled, recomputed.
        advantages, clip, clip_high, advantage_clip: as for ``clipped_terms``.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        As ``clipped_terms``; exactly 0 without gradient for a deterministic item.

    Raises:
        ValueError: shapes or standard deviations that differ.
    """
    require_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantages=advantages, std=step.std)
    corrected = log_prob - old_log_prob.detach() + transition_kl(step, old_step, mask)
    terms, diagnostics = _clipped(step.std * corrected, advantages, clip, clip_high, advantage_clip)
    return torch.where(step.stochastic, terms / step.h, 0.0), diagnostics


def _clipped(
    log_ratio: Tensor, advantages: Tensor, clip: float | None, clip_high: float | None, advantage_clip: float | None
) -> Terms:
    advantages = advantages.detach().to(log_ratio.dtype)
    if advantage_clip is not None:
        advantages = advantages.clamp(-advantage_clip, advantage_clip)
    low = float("inf") if clip is None else clip
    high = low if clip_high is None else clip_high
    ratio = bounded_exp(log_ratio)
    terms = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    seen = ratio.detach()
    diagnostics = {
        "ratio": seen,
        "below": (seen < 1 - low).to(seen.dtype),
        "above": (seen > 1 + high).to(seen.dtype),
        "neg_log_ratio": -log_ratio.detach(),
    }
    return terms, diagnostics
