"""How small a picture is as JPEG; the two tasks of DDPO (Black et al. 2023, https://arxiv.org/abs/2305.13301)."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_plugin_diffusion.pictures import to_picture

QUALITY = 95


def jpeg_incompressibility(media: Tensor, prompts: Sequence[str]) -> Tensor:
    """Size in kilobytes (1000 bytes) of each picture as JPEG of quality 95: ``[B]`` of ``[B, 1 or 3, H, W]``."""
    return torch.tensor([_bytes(sample) / 1000 for sample in media])


def jpeg_size(media: Tensor, prompts: Sequence[str]) -> Tensor:
    """The same with a minus, which rewards what JPEG compresses well."""
    return -jpeg_incompressibility(media, prompts)


def _bytes(sample: Tensor) -> int:
    buffer = io.BytesIO()
    to_picture(sample).save(buffer, "JPEG", quality=QUALITY)
    return buffer.tell()
