"""One denoising step as a Gaussian, its log-prob, and its divergence from another's.

The probability-flow ODE ``dx = v dsigma`` has the same marginals as every reverse SDE

    ``dx = (v + g^2 / (2 sigma) (x + (1 - sigma) v)) dsigma + g dW``

of any diffusion coefficient g, because the score is ``-(x + (1 - sigma) v) / sigma`` (Song et al. 2021,
arXiv 2011.13456). A step of Euler and Maruyama over ``h = sigma - sigma_next`` is a Gaussian of standard deviation
``g sqrt(h)``: this, the whole standard deviation of the step, is what ``std`` means throughout.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.flow import noise_from_velocity, x0_from_velocity
from stacx_plugin_diffusion.objectives.reductions import (
    counted_dims,
    mean_square,
    per_item,
    require_same_shape,
    upcast,
)

DYNAMICS = ("ode", "flow_sde", "dance_sde", "cps")
LOG_PROB_REDUCTIONS = ("mean", "sum")


class Transition(NamedTuple):
    """The Gaussian that the next state is drawn from.

    An item with ``std`` 0 is deterministic. It has no log-prob and no divergence: those functions give it exactly 0
    and no gradient, and ``stochastic`` tells which items to count.

    Args:
        mean: ``[N, *D]``, with the gradient of the velocity.
        std: ``[N]``, of the whole step.
        h: ``[N]``, ``sigma - sigma_next``.
    """

    mean: Tensor
    std: Tensor
    h: Tensor

    @property
    def g(self) -> Tensor:
        """``[N]``: the diffusion coefficient, ``std / sqrt(h)``."""
        return self.std / self.h.sqrt()

    @property
    def stochastic(self) -> Tensor:
        """``[N]`` bool: the items whose step has noise, the only ones to train."""
        return self.std > 0

    def sample(self, noise: Tensor) -> Tensor:
        """``mean + std noise``, ``[N, *D]``."""
        require_same_shape(mean=self.mean, noise=noise)
        return self.mean + per_item(self.std, self.mean) * upcast(noise)


def transition(
    x: Tensor,
    velocity: Tensor,
    sigma: Tensor,
    sigma_next: Tensor,
    *,
    dynamics: str = "ode",
    eta: float = 0.0,
    sigma_max: float | None = None,
) -> Transition:
    """The step from ``sigma`` to ``sigma_next``, upcast; exactly that of the ODE wherever ``sigma_next`` is 0.

    =============  ============================================================================================
    ``ode``        g = 0
    ``flow_sde``   ``g = eta sqrt(sigma / (1 - sigma))`` (Liu et al. 2025, Flow-GRPO, arXiv 2505.05470); at
                   sigma = 1 the denominator is ``1 - sigma_max``
    ``dance_sde``  ``g = eta`` (Xue et al. 2025, DanceGRPO, arXiv 2505.07818)
    ``cps``        coefficients-preserving sampling (Wang and Yu 2025, arXiv 2509.05952):
                   ``std = sigma_next sin(eta pi / 2)`` about ``(1 - sigma_next) x0 + sqrt(sigma_next^2 - std^2) eps``
                   with x0 and eps as the velocity predicts them. No SDE: its noise does not shrink with h, so
                   its marginals are not those of the ODE and eta has to be chosen again when the steps change
    =============  ============================================================================================

    Args:
        x, velocity: ``[N, *D]``, the state and the model's velocity there.
        sigma, sigma_next: ``[N]``, ``0 <= sigma_next < sigma <= 1``.
        dynamics: one of ``DYNAMICS``.
        eta: amount of noise, at least 0; at most 1 for ``cps``.
        sigma_max: of ``flow_sde`` alone, which needs it: the second level of the schedule, in [0, 1). Replay
            needs the one that sampling had.

    Raises:
        ValueError: unknown dynamics, numbers out of range, or shapes that do not fit.
    """
    require_same_shape(x=x, velocity=velocity)
    _check_levels(sigma, sigma_next)
    _check_noise(dynamics, eta, sigma_max)
    x, velocity, sigma, sigma_next = upcast(x), upcast(velocity), upcast(sigma), upcast(sigma_next)
    h = sigma - sigma_next
    if dynamics == "cps":
        std = sigma_next * math.sin(eta * math.pi / 2)
        kept = sigma_next * math.cos(eta * math.pi / 2)
        x0, noise = x0_from_velocity(x, velocity, sigma), noise_from_velocity(x, velocity, sigma)
        return Transition((1 - per_item(sigma_next, x)) * x0 + per_item(kept, x) * noise, std, h)
    g = torch.where(sigma_next > 0, _diffusion(sigma, dynamics, eta, sigma_max), 0.0)
    drift = velocity + per_item(g.square() / (2 * sigma), x) * noise_from_velocity(x, velocity, sigma)
    return Transition(x - drift * per_item(h, x), g * h.sqrt(), h)


def _diffusion(sigma: Tensor, dynamics: str, eta: float, sigma_max: float | None) -> Tensor:
    """``[N]``: g of an SDE."""
    if dynamics == "flow_sde":
        denominator = 1 - torch.where(sigma == 1, sigma.new_tensor(sigma_max), sigma)
        return eta * (sigma / denominator).sqrt()
    return torch.full_like(sigma, eta if dynamics == "dance_sde" else 0.0)


def _check_levels(sigma: Tensor, sigma_next: Tensor) -> None:
    require_same_shape(sigma=sigma, sigma_next=sigma_next)
    if not ((sigma_next >= 0) & (sigma_next < sigma) & (sigma <= 1)).all():
        raise ValueError(
            "a step goes from sigma in (0, 1] down to sigma_next in [0, sigma); got steps from "
            f"{sigma.tolist()} to {sigma_next.tolist()}"
        )


def _check_noise(dynamics: str, eta: float, sigma_max: float | None) -> None:
    if dynamics not in DYNAMICS:
        raise ValueError(f"dynamics {dynamics!r} are unknown; choose one of {', '.join(DYNAMICS)}")
    if not 0 <= eta < math.inf or (dynamics == "cps" and eta > 1):
        raise ValueError(f"eta must be at least 0, and at most 1 for cps; got {eta} for {dynamics}")
    if dynamics == "flow_sde" and (sigma_max is None or not 0 <= sigma_max < 1):
        raise ValueError(
            f"flow_sde needs sigma_max in [0, 1), the second noise level of its schedule, got {sigma_max}; "
            "without it the first step has infinite noise"
        )


def log_prob(
    sample: Tensor, step: Transition, reduce: str = "mean", normalizer: bool = True, mask: Tensor | None = None
) -> Tensor:
    """The Gaussian log-density of the next state, per dimension by default.

    ``mean_dims(-(sample - mean)^2 / (2 std^2)) - log std - log(2 pi) / 2``; a mean, so that clip ranges are per
    dimension: for equal changes of the model, log-ratios shrink as one over the root of the number of dimensions.

    Args:
        sample: ``[N, *D]``; its gradient is not taken.
        step: what it was drawn from, or would be by the policy being trained.
        reduce: ``mean`` or ``sum`` over dimensions.
        normalizer: keep the terms without ``sample``; they cancel in a ratio.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        ``[N]``; exactly 0 without gradient for a deterministic item.

    Raises:
        ValueError: unknown ``reduce``, or shapes that do not fit.
    """
    if reduce not in LOG_PROB_REDUCTIONS:
        raise ValueError(f"log-prob reduction {reduce!r} is unknown; choose one of {', '.join(LOG_PROB_REDUCTIONS)}")
    std = _safe_std(step)
    value = -_squared_distance(sample.detach(), step.mean, mask) / (2 * std.square())
    if normalizer:
        value = value - std.log() - math.log(2 * math.pi) / 2
    if reduce == "sum":
        value = value * counted_dims(step.mean, mask)
    return torch.where(step.stochastic, value, 0.0)


def cps_log_prob(sample: Tensor, step: Transition, mask: Tensor | None = None) -> Tensor:
    """``-mean_dims (sample - mean)^2``, what was published with CPS in place of a log-prob.

    Without ``1 / (2 std^2)``, which reweights the steps by ``2 std^2``. Arguments and result as for ``log_prob``.
    """
    return torch.where(step.stochastic, -_squared_distance(sample.detach(), step.mean, mask), 0.0)


def transition_kl(step: Transition, reference: Transition, mask: Tensor | None = None) -> Tensor:
    """``mean_dims (mean - mean_ref)^2 / (2 std^2)``: the divergence of two steps that differ in their velocity.

    Equal to ``c mean_dims (v - v_ref)^2`` with ``c = h / 2 (1 / g + g (1 - sigma) / (2 sigma))^2`` for the SDEs
    (Flow-GRPO, arXiv 2505.05470, has it for a sum over dimensions). Times h it is what several programs compute,
    which divide by ``2 g^2``.

    Args:
        step: with the gradient of the policy.
        reference: from the same state by the same dynamics; no gradient.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        ``[N]``; exactly 0 without gradient for a deterministic item.

    Raises:
        ValueError: two standard deviations: these are not steps of one schedule.
    """
    if not torch.equal(step.std, reference.std):
        raise ValueError(
            "a step and its reference must have one standard deviation; use one schedule, one dynamics and one eta, "
            f"got {step.std.tolist()} and {reference.std.tolist()}"
        )
    distance = _squared_distance(reference.mean.detach(), step.mean, mask)
    return torch.where(step.stochastic, distance / (2 * _safe_std(step).square()), 0.0)


def _safe_std(step: Transition) -> Tensor:
    """``std``, 1 where it is 0, so that what is discarded there has finite gradients."""
    return torch.where(step.stochastic, step.std, 1.0)


def _squared_distance(fixed: Tensor, mean: Tensor, mask: Tensor | None) -> Tensor:
    require_same_shape(other=fixed, mean=mean)
    return mean_square(upcast(fixed) - mean, mask)
