"""What one process reads of a packed micro-batch, and where the others' tokens are.

Under context parallelism every sample is filled up to a multiple of ``2 cp`` tokens and cut into as many chunks, of
which process ``k`` has the ``k``-th and the ``k``-th from the end: the work of causal attention is then the same for
all. Under sequence parallelism a tail without meaning makes the length a multiple of ``tp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.megatron.attention import ZigzagAttention
from stacx_core.backends.megatron.layout import Layout


@dataclass(frozen=True)
class Packed:
    """The input of one process; the model hands it on to rotary embeddings and attention.

    Attributes:
        tokens, positions: ``[1, T_local]`` int64.
        owners: ``[T]`` int64 on the CPU, the context-parallel rank that has each token of the micro-batch.
        rows: ``[T]`` int64 on the CPU, its place among that rank's T_local tokens.
        attention: What computes the attention between the tokens.
    """

    tokens: Tensor
    positions: Tensor
    owners: Tensor
    rows: Tensor
    attention: PackedLayout | ZigzagAttention

    qkv_format = "packed"
    """Read by Megatron: its own layout of packed sequences, which needs Transformer Engine, is "thd"."""
    cp_group: Any = None


def zigzag(lengths: Sequence[int], ranks: int) -> tuple[list[int], Tensor, Tensor]:
    """Which rank has which token of samples laid end to end.

    Args:
        lengths: Tokens of each sample, filled up or not.
        ranks: Context-parallel processes.

    Returns:
        The chunk length of each sample; owner and place of each token of the samples filled up to ``2 * ranks``
        chunks, both ``[sum(2 * ranks * chunk)]`` int64.
    """
    chunks = [-(-length // (2 * ranks)) for length in lengths]
    owners, rows, start = [], [], 0
    order = torch.tensor([*range(ranks), *reversed(range(ranks))])
    half = torch.tensor([0] * ranks + [1] * ranks)
    for chunk in chunks:
        owners.append(order.repeat_interleave(chunk))
        places = half.repeat_interleave(chunk) * chunk + torch.arange(chunk).repeat(2 * ranks)
        rows.append(start + places)
        start += 2 * chunk
    return chunks, torch.cat(owners), torch.cat(rows)


def pack(tokens: Tensor, lengths: Sequence[int], layout: Layout, rank: int) -> Packed:
    """The input of context-parallel rank ``rank``.

    Args:
        tokens: ``[1, T]`` int64, samples end to end.
        lengths: Tokens of each sample, none of them 0.
    """
    cp = layout.context
    if cp == 1:
        owners, rows = torch.zeros(sum(lengths), dtype=torch.int64), torch.arange(sum(lengths))
        local, positions = tokens[0], torch.cat([torch.arange(length) for length in lengths])
        size = _padded(len(local), layout)
        attention: PackedLayout | ZigzagAttention = PackedLayout(lengths, tokens.device, size=size)
    else:
        chunks, all_owners, all_rows = zigzag(lengths, cp)
        full = [2 * cp * chunk for chunk in chunks]
        real = torch.cat([torch.arange(width) < length for width, length in zip(full, lengths, strict=True)])
        owners, rows = all_owners[real], all_rows[real]
        mine = all_owners == rank
        order = torch.argsort(all_rows[mine])
        filled = tokens.new_zeros(len(real)).masked_scatter(real.to(tokens.device), tokens[0])
        local = filled[mine.nonzero()[order, 0].to(tokens.device)]
        positions = torch.cat([torch.arange(width) for width in full])[mine][order]
        size = _padded(len(local), layout)
        attention = ZigzagAttention(chunks, size, cp, rank, tokens.device)
    tail = size - len(local)
    return Packed(
        torch.cat([local, local.new_zeros(tail)])[None],
        torch.cat([positions, positions.new_zeros(tail)])[None].to(tokens.device),
        owners,
        rows,
        attention,
    )


def _padded(length: int, layout: Layout) -> int:
    return -(-length // layout.tensor) * layout.tensor if layout.sequence_parallel else length
