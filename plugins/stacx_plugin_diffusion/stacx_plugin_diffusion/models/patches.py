"""Between a latent and its tokens, each a square of latent pixels."""

from __future__ import annotations

from torch import Tensor


def patchify(x: Tensor, size: int) -> Tensor:
    """``[B, (H/size)(W/size), C size²]`` from ``[B, C, H, W]``; a token lists channel, row, column."""
    blocks = x.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    tokens: Tensor = blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return tokens


def unpatchify(tokens: Tensor, size: int, rows: int, columns: int) -> Tensor:
    """The inverse of :func:`patchify`."""
    blocks = tokens.unflatten(1, (rows, columns)).unflatten(-1, (-1, size, size))
    x: Tensor = blocks.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    return x
