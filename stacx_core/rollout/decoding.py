"""Attention layouts of generation: prefill that records keys and values, and one-token decode steps over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stacx_core.backends.attention import PackedLayout


class PrefillLayout:
    """Packed causal attention over the prompts that also keeps each layer's keys and values."""

    def __init__(self, packed: PackedLayout) -> None:
        self.longest = packed.longest
        self._packed = packed
        self._recorded: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[1, H, T, D]`` to ``[1, T, H, D]``."""
        self._recorded[layer] = (key[0].transpose(0, 1), value[0].transpose(0, 1))
        return self._packed.attend(layer, query, key, value, scale, dropout)

    def decode(self, lengths: Sequence[int], owner: Tensor, new_tokens: int) -> DecodeLayout:
        """Caches for one row per response.

        Args:
            lengths: Tokens of each prompt.
            owner: ``[R]`` int64, the prompt of each row.
            new_tokens: Room for so many more tokens.
        """
        width = self.longest
        sizes = torch.tensor(list(lengths), device=owner.device)
        slots = torch.cat([torch.arange(width - n, width) + i * width for i, n in enumerate(lengths)]).to(owner.device)

        def spread(flat: Tensor) -> Tensor:
            padded = flat.new_zeros(len(lengths) * width, *flat.shape[1:]).index_copy(0, slots, flat)
            rows = padded.view(len(lengths), width, *flat.shape[1:]).transpose(1, 2)
            cache = flat.new_empty(len(owner), flat.shape[1], width + new_tokens, flat.shape[2])
            cache[:, :, :width] = rows[owner]
            return cache

        caches = {layer: (spread(k), spread(v)) for layer, (k, v) in self._recorded.items()}
        valid = torch.arange(width + new_tokens, device=owner.device) >= width - sizes[owner, None]
        return DecodeLayout(caches, valid, sizes[owner], width)


class DecodeLayout:
    """One new token a row over caches whose prompts are aligned at their end.

    Since all rows have their newest token in the same column, a step writes one column and needs a mask only for the
    empty columns in front of shorter prompts.

    Args:
        caches: Per layer keys and values ``[R, H, C, D]``.
        valid: ``[R, C]`` bool, columns that hold a token or will.
        positions: ``[R]`` int64, the position of the next token of each row.
        column: The next free column.
    """

    def __init__(self, caches: dict[int, tuple[Tensor, Tensor]], valid: Tensor, positions: Tensor, column: int) -> None:
        self.longest = valid.shape[1]
        self._caches = caches
        self._valid = None if bool(valid.all()) else valid
        self._positions = positions
        self._column = column - 1

    def advance(self) -> Tensor:
        """Move on by one token; returns its positions ``[R, 1]``."""
        self._column += 1
        positions = self._positions[:, None]
        self._positions = self._positions + 1
        return positions

    def keep(self, going: Tensor) -> Tensor:
        """Drop rows; the last ones left move into the gaps, so that only these are copied.

        Args:
            going: ``[R]`` bool, the rows to keep.

        Returns:
            ``[going.sum()]`` int64, the old index of each row.
        """
        count = int(going.sum())
        order = torch.arange(count, device=going.device)
        gaps = (~going[:count]).nonzero().squeeze(-1)
        order[gaps] = going[count:].nonzero().squeeze(-1) + count
        used = self._column + 1
        for keys, values in self._caches.values():
            keys[gaps, :, :used] = keys[order[gaps], :, :used]
            values[gaps, :, :used] = values[order[gaps], :, :used]
        self._caches = {layer: (k[:count], v[:count]) for layer, (k, v) in self._caches.items()}
        self._valid = None if self._valid is None else self._valid[order]
        self._positions = self._positions[order]
        return order

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[R, H, 1, D]`` to ``[R, 1, H, D]``; query heads that share a key head go in as its queries."""
        keys, values = self._caches[layer]
        keys[:, :, self._column] = key[:, :, 0]
        values[:, :, self._column] = value[:, :, 0]
        end = self._column + 1
        rows, heads, _, width = query.shape
        grouped = query.reshape(rows, keys.shape[1], heads // keys.shape[1], width)
        attended = F.scaled_dot_product_attention(
            grouped,
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=None if self._valid is None else self._valid[:, None, None, :end],
            scale=scale,
            dropout_p=dropout,
        )
        return attended.reshape(rows, 1, heads, width)
