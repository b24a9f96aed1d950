"""Learning from another model's velocities: as they are, through its transitions, or by distribution matching."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.flow import (
    Terms,
    interpolate,
    loss_weight,
    velocity_error,
    velocity_target,
    x0_from_velocity,
)
from stacx_plugin_diffusion.objectives.reductions import mean_over_dims, mean_square, require_same_shape, upcast

SMALLEST_NORMALIZER = 1e-5


def velocity_distillation_terms(
    velocity: Tensor,
    teacher_velocity: Tensor,
    sigma: Tensor,
    *,
    weight: str = "none",
    slope: float = 1.0,
    mask: Tensor | None = None,
) -> Terms:
    """``w(sigma) mean_dims (v - v_teacher)^2``, at noised data or at states that the student came through itself.

    With a teacher merged by ``merge_cfg`` and a student that is run once, guidance distillation (Meng et al. 2023,
    arXiv 2210.03142).

    Args:
        velocity, teacher_velocity: ``[N, *D]`` at the same states, which carry no gradient.
        sigma: ``[N]``.
        weight, slope: see ``loss_weight``.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        The terms, and ``error``: without the weight.
    """
    error = velocity_error(velocity, teacher_velocity, mask)
    require_same_shape(item=error, sigma=sigma)
    return error * loss_weight(sigma, weight, slope), {"error": error.detach()}


def dmd_generator_terms(
    generated: Tensor,
    noise: Tensor,
    sigma: Tensor,
    real_velocity: Tensor,
    fake_velocity: Tensor,
    mask: Tensor | None = None,
) -> Terms:
    """A loss whose gradient moves samples from where the critic sees the generator to where the teacher sees data.

    Yin et al. 2024 (DMD2, arXiv 2405.14867), with the normalisation of DMD (arXiv 2311.18828):
    ``d = (x0_fake - x0_real) / max(mean_dims |x_g - x0_real|, 1e-5)`` per item, in float64, 0 where it is not a number;
    the term is ``1/2 mean_dims d^2`` in value, and its gradient in ``x_g`` is d over the number of dimensions. The
    value says little about quality: watch the samples.

    Args:
        generated: ``[N, *D]``, x_g, with the gradient of the generator.
        noise: ``[N, *D]``.
        sigma: ``[N]``.
        real_velocity: ``[N, *D]`` of the teacher at ``interpolate(x_g, noise, sigma)``, with guidance or without.
        fake_velocity: ``[N, *D]`` of the critic there.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        The terms, and ``normalizer`` and ``gradient_norm``, the root of ``mean_dims d^2``.
    """
    fixed, sigma = generated.detach().double(), sigma.double()
    x = interpolate(fixed, noise.double(), sigma)
    real = x0_from_velocity(x, real_velocity.detach().double(), sigma)
    fake = x0_from_velocity(x, fake_velocity.detach().double(), sigma)
    normalizer = mean_over_dims((fixed - real).abs(), mask).clamp(min=SMALLEST_NORMALIZER)
    direction = torch.nan_to_num((fake - real) / normalizer.reshape(-1, *[1] * (x.dim() - 1)))
    # x - x is 0 with gradient 1: the target of the square is x - direction, without the rounding of that difference.
    terms = mean_square(direction + (generated.double() - fixed), mask) / 2
    dtype = upcast(generated).dtype
    norm = mean_square(direction, mask).sqrt()
    return terms.to(dtype), {"normalizer": normalizer.to(dtype), "gradient_norm": norm.to(dtype)}


def dmd_critic_terms(fake_velocity: Tensor, generated: Tensor, noise: Tensor, mask: Tensor | None = None) -> Terms:
    """``mean_dims (v_fake - (eps - x_g))^2``: the critic learns what the generator makes at present.

    Args:
        fake_velocity: ``[N, *D]``, with the gradient of the critic, at ``interpolate(x_g, noise, sigma)``.
        generated: ``[N, *D]``, x_g; no gradient.
        noise: ``[N, *D]``.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        The terms, and nothing beside them.
    """
    return velocity_error(fake_velocity, velocity_target(generated.detach(), noise), mask), {}
