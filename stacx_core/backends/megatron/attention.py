"""Attention within each of several packed sequences, whose tokens may be spread over context-parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Megatron's core attention, on the layout that comes with a packed input."""

    def __init__(
        self, config: Any, layer_number: int, softmax_scale: float, attn_mask_type: Any = None, **unused: Any
    ) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, packed_seq_params: Any, **unused: Any
    ) -> Tensor:
        """``[T, 1, H, D]`` projections to ``[T, 1, H * D]``."""
        heads = [x.permute(1, 2, 0, 3) for x in (query, key, value)]
        output: Tensor = packed_seq_params.attention.attend(self.layer_number, *heads, self.scale, 0.0)
        return output.transpose(0, 1).flatten(2)


class ZigzagAttention:
    """Causal attention of a process that has two chunks of every sequence.

    Args:
        chunks: Length of a chunk of each sequence.
        size: Tokens of this process, with a tail without meaning.
        ranks: Context-parallel processes.
        rank: This one.
        device: Where the projections live.
    """

    def __init__(self, chunks: Sequence[int], size: int, ranks: int, rank: int, device: torch.device) -> None:
        own, keys = 0, 0
        order = []
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for chunk in chunks:
            for half, ahead in enumerate((rank, 2 * ranks - 1 - rank)):
                groups.setdefault((chunk, (ahead + 1) * chunk), []).append((own + half * chunk, keys))
            homes = [*range(ranks), *reversed(range(ranks))]
            order += [
                torch.arange(chunk) + home * size + own + (place >= ranks) * chunk for place, home in enumerate(homes)
            ]
            own, keys = own + 2 * chunk, keys + 2 * ranks * chunk
        self._order = torch.cat(order).to(device)
        self._groups = groups
        found = torch.zeros(size, dtype=torch.int64)
        offset = 0
        for (chunk, _), members in groups.items():
            for start, _ in members:
                found[start : start + chunk] = torch.arange(offset, offset + chunk)
                offset += chunk
        self._found = found.to(device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[1, H, T, D]`` to ``[1, T, H, D]``; every context-parallel process calls it at the same time."""
        queries = query[0].transpose(0, 1)
        keys, values = (self._gathered(x[0].transpose(0, 1)) for x in (key, value))
        parts = []
        for (width, seen), members in self._groups.items():
            q = torch.stack([queries[start : start + width] for start, _ in members]).transpose(1, 2)
            k, v = (
                torch.stack([x[start : start + seen] for _, start in members]).transpose(1, 2) for x in (keys, values)
            )
            attended = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=causal_lower_right(width, seen),
                scale=scale,
                dropout_p=dropout,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            parts.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(parts).index_select(0, self._found).unsqueeze(0)

    def _gathered(self, local: Tensor) -> Tensor:
        """``[T, H, D]`` of this process to those of all, each sequence's tokens in order.

        The backward pass sums every process' gradient of a key or value on the one that has it.
        """
        everyone = tensor_parallel.gather_from_sequence_parallel_region(
            local.contiguous(), group=parallel_state.get_context_parallel_group()
        )
        return everyone.index_select(0, self._order)  # type: ignore[no-any-return]
