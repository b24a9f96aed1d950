"""DiffusionNFT: learning from rewards on the forward process, without log-probs.

Zheng et al. 2025 (DiffusionNFT, arXiv 2509.16117). Any sampler may draw the clean latents; the old policy is what
they were drawn from, a slow copy of the one being trained.
"""

from __future__ import annotations

from torch import Tensor

from stacx_plugin_diffusion.objectives.flow import Terms, velocity_target
from stacx_plugin_diffusion.objectives.reductions import (
    mean_over_dims,
    mean_square,
    per_item,
    require_same_shape,
    upcast,
)

ADVANTAGE_MODES = ("all", "positive_only", "negative_only", "one_only", "binary")
OLD_POLICY_DECAYS = ("copy", "linear", "delayed")
SMALLEST_WEIGHT = 1e-5


def optimality(advantages: Tensor, advantage_clip: float, mode: str = "all") -> Tensor:
    """``1/2 + 1/2 clip(A / advantage_clip, -1, 1)``: how far a sample belongs to the good ones, in [0, 1].

    Args:
        advantages: ``[N]``, A.
        advantage_clip: positive; advantages beyond it are wholly good or bad.
        mode: ``all``; ``positive_only`` and ``negative_only`` take the others for 0; ``one_only`` takes 1 where A
            is positive and 0 elsewhere; ``binary`` takes the sign of A.

    Returns:
        ``[N]`` upcast.

    Raises:
        ValueError: an unknown mode, or a clip that is not positive.
    """
    if not advantage_clip > 0:
        raise ValueError(f"advantage_clip must be positive, got {advantage_clip}")
    a = upcast(advantages)
    if mode not in ADVANTAGE_MODES:
        raise ValueError(f"advantage mode {mode!r} is unknown; choose one of {', '.join(ADVANTAGE_MODES)}")
    if mode == "positive_only":
        a = a.clamp(min=0)
    elif mode == "negative_only":
        a = a.clamp(max=0)
    elif mode == "one_only":
        a = (a > 0).to(a.dtype)
    elif mode == "binary":
        a = a.sign()
    return 0.5 + 0.5 * (a / advantage_clip).clamp(-1, 1)


def nft_terms(
    velocity: Tensor,
    old_velocity: Tensor,
    x0: Tensor,
    noise: Tensor,
    sigma: Tensor,
    optimal: Tensor,
    *,
    beta: float = 1.0,
    scale: float = 1.0,
    adaptive: bool = True,
    mask: Tensor | None = None,
) -> Terms:
    """``scale / beta (r l+ + (1 - r) l-)``: the good half of the data fits ``v+``, the bad half ``v-``.

    ``v+ = (1 - beta) v_old + beta v`` and ``v- = (1 + beta) v_old - beta v`` are implicit policies on either side of
    the old one. ``l`` is the squared error ``mean_dims (x0_hat - x0)^2`` of the data that a policy predicts, over its
    mean absolute error (at least 1e-5, per item and without gradient), which makes noise levels comparable.

    Where ``v = v_old`` the gradient is proportional to ``2 r - 1``, whatever beta. At sigma 0 the term is 0.

    Args:
        velocity, old_velocity: ``[N, *D]`` of both policies at ``interpolate(x0, noise, sigma)``; only the first has
            a gradient.
        x0, noise: ``[N, *D]``.
        sigma, optimal: ``[N]``; the second is r, see ``optimality``.
        beta: how far the two policies stand apart; positive.
        scale: the ``advantage_clip`` that ``optimal`` was made with.
        adaptive: divide by the mean absolute error.
        mask: which dimensions count, see ``mean_over_dims``.

    Returns:
        The terms, without a pull to a reference (add ``velocity_error`` for it); and ``positive``, ``negative``
        (``l+`` and ``l-``) and ``old_distance``, ``mean_dims (v - v_old)^2``.

    Raises:
        ValueError: a beta that is not positive, or shapes that do not fit.
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}")
    require_same_shape(velocity=velocity, old_velocity=old_velocity, x0=x0)
    require_same_shape(sigma=sigma, optimal=optimal)
    old, level, r = upcast(old_velocity).detach(), per_item(sigma, x0), upcast(optimal).detach()
    step, old_error = upcast(velocity) - old, old - velocity_target(x0, noise).detach()
    # x0_hat - x0 = -sigma (v - target), so no state is needed.
    positive, negative = (_data_error(level * (old_error + b * step), adaptive, mask) for b in (beta, -beta))
    terms = scale / beta * (r * positive + (1 - r) * negative)
    seen = {"positive": positive, "negative": negative, "old_distance": mean_square(step, mask)}
    return terms, {name: value.detach() for name, value in seen.items()}


def _data_error(difference: Tensor, adaptive: bool, mask: Tensor | None) -> Tensor:
    error = mean_square(difference, mask)
    if not adaptive:
        return error
    return error / mean_over_dims(difference.detach().abs(), mask).clamp(min=SMALLEST_WEIGHT)


def old_policy_decay(kind: str, step: int) -> float:
    """d of ``theta_old <- d theta_old + (1 - d) theta`` after iteration ``step``.

    Args:
        kind: ``copy``, 0 always; ``linear``, ``min(0.001 step, 0.5)``; ``delayed``, 0 before step 75 and
            ``min(0.0075 (step - 75), 0.999)`` from there.
        step: updates of the policy so far.

    Raises:
        ValueError: an unknown kind, or a negative step.
    """
    if step < 0:
        raise ValueError(f"steps are counted from 0, got {step}")
    if kind == "copy":
        return 0.0
    if kind == "linear":
        return min(0.001 * step, 0.5)
    if kind == "delayed":
        return min(0.0075 * max(step - 75, 0), 0.999)
    raise ValueError(f"decay {kind!r} is unknown; choose one of {', '.join(OLD_POLICY_DECAYS)}")
