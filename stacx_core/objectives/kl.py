"""Single-sample estimators of the divergence from a reference policy.

With ``d = log p(y) - log q(y)`` for a token y sampled from p (Schulman, "Approximating KL divergence", 2020):

==============  =====================  =======================================================================
kind            value                  expected gradient when the samples are held fixed
==============  =====================  =======================================================================
``k1``          ``d``                  0: as a loss it only adds noise
``k2``          ``d^2 / 2``            that of the reverse KL(p || q)
``k3``          ``exp(-d) - 1 + d``    that of the forward KL(q || p), although its mean is KL(p || q)
``low_var_kl``  ``k3``, clamped        as ``k3`` inside the clamps
==============  =====================  =======================================================================

Multiplying by the importance ratio ``p / p_old`` with its gradient makes ``k3`` an unbiased estimator of the
reverse KL in both value and gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

KL_KINDS = ("k1", "k2", "k3", "low_var_kl")
LOG_RATIO_LIMIT = 20.0
LOW_VAR_KL_LIMIT = 10.0


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, kind: str, old_log_probs: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(policy || reference) for tokens sampled from the policy.

    Args:
        log_probs: ``[N]`` of the policy, with gradient when used as a loss.
        ref_log_probs: ``[N]`` of the reference.
        kind: one of ``KL_KINDS``. ``low_var_kl`` is ``k3`` with ``-d`` clamped to +-20 before the exponential
            and the result clamped to +-10.
        old_log_probs: ``[N]`` of the policy that sampled. When given, the estimate is multiplied by
            ``exp(log_probs - old_log_probs)`` with its gradient (exponent clamped to +-20) before the last
            clamp.

    Returns:
        ``[N]``, in the dtype of the inputs. Replace masked slots before the call (``where_masked``).

    Raises:
        ValueError: unknown ``kind``.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"kl kind {kind!r} is unknown; choose one of {', '.join(KL_KINDS)}")
    difference = log_probs - ref_log_probs
    if kind == "low_var_kl":
        difference = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "k1":
        estimate = difference
    elif kind == "k2":
        estimate = difference.square() / 2
    else:
        estimate = torch.expm1(-difference) + difference
    if old_log_probs is not None:
        estimate = estimate * (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return estimate.clamp(-LOW_VAR_KL_LIMIT, LOW_VAR_KL_LIMIT) if kind == "low_var_kl" else estimate
