"""Values of a scalar head at chosen tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core.objectives.sharded import ShardedOutput


def values_at(output: Tensor | ShardedOutput, rows: Tensor | None = None) -> Tensor:
    """The first column of some rows, with its gradient.

    Args:
        output: ``[T, 1]``, one value per packed token.
        rows: ``[N]`` int64; unset means all.

    Returns:
        ``[N]``, float64 for float64 output and float32 otherwise.
    """
    if rows is None:
        rows = torch.arange(len(output), device=output.device)
    if isinstance(output, ShardedOutput):
        local, places = output.held(rows)
        return output.gather(values_at(output.local, local), places, len(rows))
    values = output[rows, 0]
    return values if values.dtype == torch.float64 else values.float()
