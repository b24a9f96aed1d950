"""Which tokens each context-parallel process has: two chunks of every sample, one from either end.

A causal token attends to all before it, so late chunks cost more than early ones; the first and the last chunk together
cost as much as any such pair (Megatron-LM's context parallelism).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def zigzag_chunks(length: int, ranks: int, rank: int) -> tuple[range, range]:
    """The positions of a sample that a process has, in the order in which it has them.

    The sample is padded to ``2 ranks c`` tokens with ``c = ceil(length / (2 ranks))``; positions from ``length`` on are
    padding. ``zigzag_chunks(10, 2, 0)`` is ``(range(0, 3), range(9, 12))``.

    Args:
        length: tokens of the sample.
        ranks: number of processes among which it is cut.
        rank: the process, from 0.

    Returns:
        Two ranges of c positions each.

    Raises:
        ValueError: a rank that is none of the ranks.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"context-parallel rank {rank} of {ranks}; it must be 0 to {ranks - 1}")
    chunk = -(-length // (2 * ranks))
    mirrored = 2 * ranks - 1 - rank
    return range(rank * chunk, (rank + 1) * chunk), range(mirrored * chunk, (mirrored + 1) * chunk)


def zigzag_rows(lengths: Sequence[int], ranks: int, rank: int) -> Tensor:
    """For each token of packed samples its row among those of a process, or -1 where another process has it.

    The process has its chunks of one sample after the other, padding included.

    Args:
        lengths: tokens of each sample, in packing order.
        ranks: number of processes among which each is cut.
        rank: the process, from 0.

    Returns:
        ``[T]`` int64 with ``T = sum(lengths)``.
    """
    rows = torch.full((sum(lengths),), -1, dtype=torch.int64)
    start = row = 0
    for length in lengths:
        for chunk in zigzag_chunks(length, ranks, rank):
            held = max(min(chunk.stop, length) - chunk.start, 0)
            rows[start + chunk.start : start + chunk.start + held] = torch.arange(row, row + held)
            row += len(chunk)
        start += length
    return rows
