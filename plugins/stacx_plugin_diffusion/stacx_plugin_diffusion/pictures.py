"""Between tensors and Pillow's images."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MODES = {1: "L", 3: "RGB"}
"""Pillow's mode by number of channels."""


def to_picture(media: Tensor) -> Image.Image:
    """A picture of ``[C, H, W]`` in [0, 1], C being 1 or 3; what lies outside is clamped.

    Raises:
        ValueError: Another shape.
    """
    if media.ndim != 3 or media.shape[0] not in MODES:
        raise ValueError(f"a picture has 1 or 3 channels, as in [3, H, W]; this has the shape {list(media.shape)}")
    levels = (media.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).squeeze(-1).contiguous().numpy())


def from_picture(picture: Image.Image, channels: int) -> Tensor:
    """``[channels, H, W]`` fp32 in [0, 1] of a picture, converted to grey or to RGB."""
    levels = np.asarray(picture.convert(MODES[channels]), dtype=np.float32) / 255
    return torch.from_numpy(levels.reshape(picture.height, picture.width, channels)).permute(2, 0, 1).contiguous()
