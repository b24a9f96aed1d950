"""What one process reads of a packed micro-batch.

Under context parallelism every sample is filled up and cut as :mod:`stacx_core.data.zigzag` says. Under sequence
parallelism a tail without meaning makes the length a multiple of ``tp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.megatron.attention import ZigzagAttention
from stacx_core.data.zigzag import zigzag_chunks, zigzag_rows
from stacx_core.planning.layout import Layout


@dataclass(frozen=True)
class Packed:
    """The input of one process; the model hands it on to rotary embeddings and attention.

    Attributes:
        tokens, positions: ``[1, T_local]`` int64.
        rows: ``[T]`` int64 on the CPU, the place of each token of the micro-batch among the T_local tokens, or -1 where
            another process has it.
        attention: What computes the attention between the tokens.
    """

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    attention: PackedLayout | ZigzagAttention

    qkv_format = "packed"
    """Read by Megatron: its own layout of packed sequences, which needs Transformer Engine, is "thd"."""
    cp_group: Any = None


def pack(tokens: Tensor, lengths: Sequence[int], layout: Layout, rank: int) -> Packed:
    """The input of context-parallel rank ``rank``.

    Args:
        tokens: ``[1, T]`` int64, samples end to end.
        lengths: Tokens of each sample, none of them 0.
    """
    if layout.context == 1:
        rows, local = torch.arange(sum(lengths)), tokens[0]
        positions = torch.cat([torch.arange(length) for length in lengths])
        size = _padded(len(local), layout)
        attention: PackedLayout | ZigzagAttention = PackedLayout(lengths, tokens.device, size=size)
    else:
        rows = zigzag_rows(lengths, layout.context, rank)
        pieces = [zigzag_chunks(length, layout.context, rank) for length in lengths]
        positions = torch.cat([torch.tensor([*first, *second]) for first, second in pieces])
        mine = rows >= 0
        local = tokens.new_zeros(len(positions))
        local[rows[mine].to(tokens.device)] = tokens[0, mine.nonzero()[:, 0].to(tokens.device)]
        size = _padded(len(local), layout)
        attention = ZigzagAttention([len(first) for first, _ in pieces], size, layout.context, rank, tokens.device)
    tail = size - len(local)
    return Packed(
        torch.cat([local, local.new_zeros(tail)])[None],
        torch.cat([positions, positions.new_zeros(tail)])[None].to(tokens.device),
        rows,
        attention,
    )


def _padded(length: int, layout: Layout) -> int:
    return -(-length // layout.tensor) * layout.tensor if layout.sequence_parallel else length
