"""Flow matching: the path between data and noise, its velocity, and the regression onto it.

The one convention of this package; adapters translate models that were trained with another:

==========  ================================================================================================
``x0``      clean latents, ``[N, *D]``: images ``[N, C, H, W]``, video ``[N, C, F, H, W]``, tokens ``[N, S, C]``
``noise``   standard normal, eps, shape of ``x0``
``sigma``   noise level, ``[N]`` in [0, 1]: **1 is pure noise, 0 is data**
``x``       ``(1 - sigma) x0 + sigma eps``
velocity    ``dx / dsigma = eps - x0``; sampling walks sigma from 1 to 0, ``x_next = x + v (sigma_next - sigma)``
==========  ================================================================================================

Lipman et al. 2023 (Flow Matching, arXiv 2210.02747) with the straight path of rectified flow (Liu et al. 2023,
arXiv 2209.03003), in the direction of Esser et al. 2024 (SD3, arXiv 2403.03206). All arithmetic is in float32,
or in float64 for float64 input. "Mean over dimensions" is over every axis but the first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.reductions import mean_square, per_item, require_same_shape, upcast

Terms = tuple[Tensor, dict[str, Tensor]]
"""One loss per item, ``[N]`` with gradient, and what to look at, each ``[N]`` without."""

LOSS_WEIGHTS = ("none", "linear", "sigma_sqrt", "cosmap", "bell")
SMALLEST_SIGMA = 1e-4
"""``sigma_sqrt`` takes a lower sigma for this: its weight is infinite at 0."""

_BELL_FLOOR = math.exp(-0.5)
_BELL_MEAN = math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5)) - _BELL_FLOOR


def interpolate(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """``x = (1 - sigma) x0 + sigma eps``, upcast.

    Args:
        x0, noise: ``[N, *D]``.
        sigma: ``[N]``.

    Raises:
        ValueError: shapes that do not fit.
    """
    require_same_shape(x0=x0, noise=noise)
    sigma = per_item(sigma, x0)
    return (1 - sigma) * upcast(x0) + sigma * upcast(noise)


def velocity_target(x0: Tensor, noise: Tensor) -> Tensor:
    """``eps - x0``, ``[N, *D]`` upcast."""
    require_same_shape(x0=x0, noise=noise)
    return upcast(noise) - upcast(x0)


def x0_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """``x - sigma v``: the data that a state ``x [N, *D]`` and its velocity point to."""
    require_same_shape(x=x, velocity=velocity)
    return upcast(x) - per_item(sigma, x) * upcast(velocity)


def noise_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """``x + (1 - sigma) v``: the noise that a state ``x [N, *D]`` and its velocity come from."""
    require_same_shape(x=x, velocity=velocity)
    return upcast(x) + (1 - per_item(sigma, x)) * upcast(velocity)


def velocity_error(velocity: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """``mean_dims (v - target)^2``, ``[N]`` with the gradient of ``velocity`` alone.

    With ``velocity_target`` it is the flow-matching error; with the velocity of a frozen model, the distance from
    that model: the velocity KL of Flow-GRPO, the reference term of DiffusionNFT, distillation from a teacher.

    Args:
        velocity, target: ``[N, *D]``.
        mask: which dimensions count, see ``mean_over_dims``.
    """
    require_same_shape(velocity=velocity, target=target)
    return mean_square(upcast(velocity) - upcast(target).detach(), mask)


def loss_weight(sigma: Tensor, kind: str = "none", slope: float = 1.0) -> Tensor:
    """How much an error at a noise level counts; a matter apart from how often the level is drawn.

    ===============  =====================================================================================
    ``none``         1
    ``linear``       ``1 + slope sigma``
    ``sigma_sqrt``   ``sigma^-2``, sigma at least 1e-4 (the name is that of diffusers)
    ``cosmap``       ``2 / (pi (1 - 2 sigma + 2 sigma^2))`` (SD3, section 3.1)
    ``bell``         ``exp(-2 (sigma - 1/2)^2)`` less its value at 0 and 1, scaled to mean 1 over [0, 1]
    ===============  =====================================================================================

    Args:
        sigma: any shape, in [0, 1].
        kind: one of ``LOSS_WEIGHTS``.
        slope: of ``linear``.

    Returns:
        The shape of ``sigma``, upcast.

    Raises:
        ValueError: unknown ``kind``.
    """
    sigma = upcast(sigma)
    if kind == "none":
        return torch.ones_like(sigma)
    if kind == "linear":
        return 1 + slope * sigma
    if kind == "sigma_sqrt":
        return sigma.clamp(min=SMALLEST_SIGMA) ** -2
    if kind == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma.square()))
    if kind == "bell":
        return (torch.exp(-2 * (sigma - 0.5).square()) - _BELL_FLOOR) / _BELL_MEAN
    raise ValueError(f"loss weight {kind!r} is unknown; choose one of {', '.join(LOSS_WEIGHTS)}")


def flow_matching_terms(
    velocity: Tensor,
    x0: Tensor,
    noise: Tensor,
    sigma: Tensor,
    *,
    weight: str = "none",
    slope: float = 1.0,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Terms:
    """``w(sigma) a mean_dims (v - (eps - x0))^2`` per item: the flow-matching loss, weighted.

    Args:
        velocity: ``[N, *D]``, of the model at ``interpolate(x0, noise, sigma)``.
        x0, noise: ``[N, *D]``.
        sigma: ``[N]``.
        weight, slope: see ``loss_weight``.
        sample_weight: ``[N]``, a; for example ``rwr_weights``. None: 1.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        The terms, and ``error``: without either weight.

    Raises:
        ValueError: an unknown weight, or shapes that do not fit.
    """
    error = velocity_error(velocity, velocity_target(x0, noise), mask)
    require_same_shape(item=error, sigma=sigma)
    terms = error * loss_weight(sigma, weight, slope)
    if sample_weight is not None:
        require_same_shape(item=error, sample_weight=sample_weight)
        terms = terms * upcast(sample_weight).detach()
    return terms, {"error": error.detach()}


def rwr_weights(rewards: Tensor, temperature: float) -> Tensor:
    """``exp(r / temperature)`` over its mean: reward-weighted regression (Peters and Schaal 2007).

    Args:
        rewards: ``[N]`` of the whole batch: the weight of one sample depends on all the others, so this comes
            before a batch is cut.
        temperature: positive; the lower, the more the best samples count.

    Returns:
        ``[N]`` upcast, of mean 1.

    Raises:
        ValueError: a temperature that is not positive, or rewards that are not finite.
    """
    if not temperature > 0:
        raise ValueError(f"the temperature of reward weights must be positive, got {temperature}")
    if not rewards.isfinite().all():
        raise ValueError("rewards to weight samples by must be finite; drop the samples whose reward is not")
    return torch.softmax(upcast(rewards) / temperature, dim=0) * len(rewards)
