"""What every objective does to its tensors: one precision, one shape per item, one mean over dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, so that no ratio overflows fp32."""


def upcast(x: Tensor) -> Tensor:
    """``x`` in float64 if it is float64, in float32 otherwise."""
    return x if x.dtype == torch.float64 else x.float()


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """``exp`` of a log-ratio clamped to +-20."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def require_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors that would broadcast against each other without being meant to.

    Raises:
        ValueError: the shapes differ.
    """
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if len(set(map(tuple, shapes.values()))) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"expected tensors of one shape, got {listed}")


def per_item(values: Tensor, like: Tensor) -> Tensor:
    """``values [N]``, upcast and shaped ``[N, 1, ...]`` to be multiplied with ``like [N, *D]``.

    Raises:
        ValueError: ``values`` is not one number per item of ``like``.
    """
    if like.dim() < 2 or values.shape != like.shape[:1]:
        raise ValueError(
            f"expected one value per item, shape [N], beside tensors [N, *D]; got {list(values.shape)} beside "
            f"{list(like.shape)}"
        )
    return upcast(values).reshape(-1, *[1] * (like.dim() - 1))


def mean_square(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``mean_over_dims(x^2, mask)``, with no gradient from what stands at masked places, NaN included."""
    return mean_over_dims(_kept(x, mask).square(), mask)


def mean_over_dims(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over every axis but the first.

    Args:
        x: ``[N, *D]``.
        mask: nonzero where ``x`` counts; as many axes as ``x``, each of its length or 1. None: all of it counts.

    Returns:
        ``[N]``, upcast; 0 for an item of which nothing counts.

    Raises:
        ValueError: ``x`` without an axis to average over, or a mask that does not fit it.
    """
    if x.dim() < 2:
        raise ValueError(f"expected a tensor [N, *D] with an axis beside the batch, got {list(x.shape)}")
    total = _kept(upcast(x), mask).flatten(1)
    return total.mean(1) if mask is None else total.sum(1) / counted_dims(x, mask).clamp(min=1)


def counted_dims(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """``[N]`` upcast: how many of the dimensions of each item of ``x [N, *D]`` count under ``mask``."""
    kept = torch.ones_like(x, dtype=torch.bool) if mask is None else _expanded(mask, x)
    return kept.flatten(1).sum(1).to(upcast(x))


def _kept(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(_expanded(mask, x), x, torch.zeros((), dtype=x.dtype, device=x.device))


def _expanded(mask: Tensor, x: Tensor) -> Tensor:
    fits = mask.dim() == x.dim() and all(m in (1, d) for m, d in zip(mask.shape, x.shape, strict=True))
    if not fits:
        raise ValueError(f"a mask for {list(x.shape)} has as many axes, each as long or 1; got {list(mask.shape)}")
    return mask.bool().expand_as(x)
