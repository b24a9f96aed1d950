"""Divergences estimated from the one token that the student sampled.

With ``d = log p(y) - log q(y)``, p the student's and q the teacher's probability of a token y drawn from p, and
``w = p(y) / p_old(y)`` the importance ratio with its gradient:

=============  =========================  ==========================  ============================================
mode           value                      gradient by ``log p(y)``    expected gradient, the samples held fixed
=============  =========================  ==========================  ============================================
``k3_sample``  ``exp(-d) - 1 + d``        ``1 - exp(-d)``             that of the forward KL(q || p)
``k2``         ``d^2 / 2``                ``d``                       that of the reverse KL(p || q)
``k3_is``      ``w (exp(-d) - 1 + d)``    ``w d``                     that of the reverse KL(p || q)
=============  =========================  ==========================  ============================================

The mean of ``k3_sample`` and of ``k3_is`` over samples is KL(p || q), and neither is negative anywhere. ``k3_sample``
pushes least where the student is surer than the teacher (its gradient is at most 1) and most where the teacher is
surer; so it covers what the teacher does rather than settling on one way. In both, ``-d`` is clamped to +-20 before
the exponential and the result to +-10, beyond which the gradient is 0. ``k2`` is not clamped.

Source: Schulman, "Approximating KL divergence", 2020; the estimator is that of on-policy distillation (Agarwal et al.
2024, arXiv 2306.13649) with samples from the student.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core.objectives import kl_estimate

_ESTIMATORS = {"k3_sample": "low_var_kl", "k2": "k2", "k3_is": "low_var_kl"}
SAMPLED_MODES = tuple(_ESTIMATORS)
RESULT_LIMIT = 10.0


def sampled_divergence(
    log_probs: Tensor, teacher_log_probs: Tensor, mode: str = "k3_sample", old_log_probs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The per-token loss of a mode, and where its clamp is active.

    Args:
        log_probs: ``[N]`` of the student, with gradient.
        teacher_log_probs: ``[N]`` of the teacher for the same tokens. Replace masked slots before the call.
        mode: one of ``SAMPLED_MODES``.
        old_log_probs: ``[N]`` of the student that sampled, for ``k3_is``; unset means that nothing has been updated
            since, so that the ratio is 1 with the gradient of ``log_probs``.

    Returns:
        The loss ``[N]``, and ``[N]`` 0 or 1, where the clamp holds the loss and its gradient is 0.

    Raises:
        ValueError: unknown ``mode``.
    """
    if mode not in _ESTIMATORS:
        raise ValueError(f"mode {mode!r} is unknown; choose one of {', '.join(SAMPLED_MODES)}")
    old = None
    if mode == "k3_is":
        old = log_probs.detach() if old_log_probs is None else old_log_probs
    loss = kl_estimate(log_probs, teacher_log_probs, _ESTIMATORS[mode], old)
    held = loss.detach() >= RESULT_LIMIT if mode != "k2" else torch.zeros_like(loss, dtype=torch.bool)
    return loss, held.to(loss.dtype)
