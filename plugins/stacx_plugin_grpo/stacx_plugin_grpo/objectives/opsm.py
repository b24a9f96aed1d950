"""Off-policy sequence masking: bad answers that the policy has moved away from are no longer pushed down."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stacx_plugin_grpo.objectives.sequences import per_token, sequence_means


def opsm_mask(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    delta: float = 1e-4,
) -> Tensor:
    """What of the policy loss to keep (DeepSeek-V3.2, 2025, section 3.1).

    ``kappa_i = sum_t m (o - s) / n_i`` measures how far sequence i has become less likely. A token counts 0 if its
    advantage is negative and ``kappa_i > delta``, else 1; with one advantage per sequence that masks whole sequences.

    Args:
        log_probs: ``[N]``, s, of the policy being trained.
        old_log_probs: ``[N]``, o, of the policy that sampled.
        advantages: ``[N]``.
        response_lengths, loss_masks: lengths and ``[R_i]`` masks of the B sequences.
        delta: how far is too far.

    Returns:
        ``[N]`` of 0 and 1, without gradient.
    """
    drift = sequence_means(old_log_probs.detach() - log_probs.detach(), response_lengths, loss_masks)
    masked = (advantages < 0) & (per_token(drift, response_lengths) > delta)
    return (~masked).to(log_probs.dtype)
