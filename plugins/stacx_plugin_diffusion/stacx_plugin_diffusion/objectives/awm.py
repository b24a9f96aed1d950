"""Advantage-weighted matching: the flow-matching error in place of a log-prob.

Xue et al. 2025 (AWM, arXiv 2509.25050). Old and new log-prob are taken at the same noise and noise level, and go
through ``clipped_terms``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.flow import velocity_error, velocity_target
from stacx_plugin_diffusion.objectives.reductions import require_same_shape, upcast

AWM_WEIGHTS = ("uniform", "sigma", "sigma_squared", "ghuber")
HUBER_POWER = 0.25
HUBER_EPSILON = 1e-10


def awm_log_prob(
    velocity: Tensor, x0: Tensor, noise: Tensor, sigma: Tensor, weight: str = "uniform", mask: Tensor | None = None
) -> Tensor:
    """``-w(sigma) q`` with ``q = mean_dims (v - (eps - x0))^2``: a stand-in for the log-prob of ``x0``.

    Args:
        velocity: ``[N, *D]``, at ``interpolate(x0, noise, sigma)``.
        x0, noise: ``[N, *D]``.
        sigma: ``[N]``.
        weight: ``uniform`` 1, ``sigma``, ``sigma_squared``; ``ghuber`` for ``-sigma ((q + e)^p - e^p) / p``
            with p = 1/4 and e = 1e-10, which grows slowly with large errors.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        ``[N]`` with the gradient of ``velocity``.

    Raises:
        ValueError: an unknown weight, or shapes that do not fit.
    """
    error = velocity_error(velocity, velocity_target(x0, noise), mask)
    require_same_shape(item=error, sigma=sigma)
    sigma = upcast(sigma)
    if weight == "uniform":
        return -error
    if weight == "sigma":
        return -sigma * error
    if weight == "sigma_squared":
        return -sigma.square() * error
    if weight == "ghuber":
        offset = torch.full_like(error, HUBER_EPSILON)
        return -sigma * ((error + offset).pow(HUBER_POWER) - offset.pow(HUBER_POWER)) / HUBER_POWER
    raise ValueError(f"AWM weight {weight!r} is unknown; choose one of {', '.join(AWM_WEIGHTS)}")
