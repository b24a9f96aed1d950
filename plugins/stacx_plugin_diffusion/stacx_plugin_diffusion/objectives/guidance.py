"""Classifier-free guidance of velocities."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_plugin_diffusion.objectives.reductions import require_same_shape, upcast


def merge_cfg(
    conditional: Tensor,
    unconditional: Tensor | None,
    scale: float,
    *,
    detach_unconditional: bool = True,
    renormalize_axis: int | None = None,
) -> Tensor:
    """``v_u + scale (v_c - v_u)`` (Ho and Salimans 2022, arXiv 2207.12598); ``v_c`` for a scale of 1 or less.

    A replay of sampled steps needs the scale that sampling had.

    Args:
        conditional, unconditional: ``[N, *D]``; the second is not needed for a scale of 1 or less.
        scale: strength of the guidance.
        detach_unconditional: as Flow-GRPO does: the gradient, times ``scale``, takes the way through ``v_c`` alone.
        renormalize_axis: scale the result back to the norm of ``v_c`` along this axis, the channels, as Qwen-Image
            does; -1 for packed tokens, 1 for images. None: leave it.

    Returns:
        ``[N, *D]`` upcast.

    Raises:
        ValueError: a scale above 1 without ``unconditional``, or shapes that differ.
    """
    conditional = upcast(conditional)
    if scale <= 1:
        return conditional
    if unconditional is None:
        raise ValueError(f"guidance of scale {scale} needs the velocity without the prompt; pass it, or scale 1")
    require_same_shape(conditional=conditional, unconditional=unconditional)
    unconditional = upcast(unconditional.detach() if detach_unconditional else unconditional)
    merged = unconditional + scale * (conditional - unconditional)
    if renormalize_axis is None:
        return merged
    wanted, found = (torch.linalg.vector_norm(v, dim=renormalize_axis, keepdim=True) for v in (conditional, merged))
    scaled: Tensor = merged * (wanted / found.clamp(min=torch.finfo(merged.dtype).tiny))
    return scaled
