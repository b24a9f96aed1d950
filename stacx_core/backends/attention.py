"""Attention without padding for Hugging Face models.

Transformers lets a model call a registered attention function and hands it every extra keyword of ``forward``. Ours
passes the projected queries, keys and values to the layout object given as ``attention_layout``: packed sequences in
training and scoring, prefill and decode in generation. Neither needs a mask over all packed tokens, and generation
needs no cache class of Transformers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from stacx_core.errors import ModelError

IMPLEMENTATION = "stacx"


class AttentionLayout(Protocol):
    """Where tokens stand and what each may attend to."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[1 or R, H, T, D]`` projections to the attention output ``[1 or R, T, H, D]``."""


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    layout: AttentionLayout | None = options.get("attention_layout")
    if layout is None:
        raise ModelError("the model dropped the attention layout on its way to the attention; it cannot be packed")
    window = options.get("sliding_window")
    if window is not None and int(getattr(layout, "longest", 0)) > window:
        raise ModelError(f"a sequence is longer than the model's sliding window of {window}; set --max-sequence-len")
    if options.get("softcap") is not None or options.get("s_aux") is not None:
        raise ModelError(
            f"{type(module).__name__} uses attention soft-capping or sinks, which packing does not support"
        )
    scale = options.get("scaling")
    return layout.attend(
        module.layer_idx,
        query,
        key,
        value,
        query.shape[-1] ** -0.5 if scale is None else scale,
        options.get("dropout", 0.0),
    ), None


AttentionInterface.register(IMPLEMENTATION, _attention)


class PackedLayout:
    """Causal attention within each of several sequences laid end to end.

    Sequences of similar length share one padded kernel call, so that neither a ``[T, T]`` mask nor one call per
    sequence is needed.

    Args:
        lengths: Tokens of each sequence, in order; their sum is T.
        device: Where the projections live.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.longest = max(lengths, default=0)
        self.layers_seen: set[int] = set()
        starts = [0, *itertools.accumulate(lengths)]
        self._groups: list[tuple[Tensor, Tensor, int, int]] = []
        for members in _similar(lengths):
            width = max(lengths[i] for i in members)
            tokens = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in members])
            slots = torch.cat([torch.arange(lengths[i]) + row * width for row, i in enumerate(members)])
            self._groups.append((tokens.to(device), slots.to(device), len(members), width))
        self._inverse = torch.cat([tokens for tokens, *_ in self._groups]).argsort()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[1, H, T, D]`` to ``[1, T, H, D]``."""
        self.layers_seen.add(layer)
        flat = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
        parts = []
        for tokens, slots, rows, width in self._groups:
            q, k, v = (_pad(x, tokens, slots, rows, width) for x in flat)
            attended = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=q.shape[1] != k.shape[1]
            )
            parts.append(attended.transpose(1, 2).flatten(0, 1)[slots])
        return torch.cat(parts)[self._inverse].unsqueeze(0)


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped so that no sequence is shorter than half the longest of its group, longest first."""
    groups: list[list[int]] = []
    for index in sorted((i for i, n in enumerate(lengths) if n), key=lambda i: (-lengths[i], i)):
        if groups and 2 * lengths[index] >= lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]


def _pad(x: Tensor, tokens: Tensor, slots: Tensor, rows: int, width: int) -> Tensor:
    padded = x.new_zeros(rows * width, *x.shape[1:]).index_copy(0, slots, x[tokens])
    return padded.view(rows, width, *x.shape[1:]).transpose(1, 2)
