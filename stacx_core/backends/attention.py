"""Attention without padding for Hugging Face models.

Transformers lets a model call a registered attention function and hands it every extra keyword of ``forward``. Ours
passes the projected queries, keys and values to the layout object given as ``attention_layout``: packed sequences in
training and scoring, prefill and decode in generation. Neither needs a mask over all packed tokens, and generation
needs no cache class of Transformers.
"""

from __future__ import annotations

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
        lengths: Tokens of each sequence, in order.
        device: Where the projections live.
        places: ``[sum(lengths)]`` int64 on the CPU, where each token of each sequence stands among the T tokens of
            the input; sequences may have tokens in common. By default they lie end to end.
        size: T, when there are tokens behind the last place, whose output does not matter.
    """

    def __init__(
        self, lengths: Sequence[int], device: torch.device, places: Tensor | None = None, size: int | None = None
    ) -> None:
        self.longest = max(lengths, default=0)
        self.layers_seen: set[int] = set()
        places = torch.arange(sum(lengths)) if places is None else places
        own = places.split(list(lengths))
        self._groups: list[tuple[Tensor | None, int, int]] = []
        found = torch.zeros(size or int(places.max()) + 1, dtype=torch.int64)
        offset = 0
        for members in _similar(lengths):
            width = max(lengths[i] for i in members)
            tokens = torch.stack([_stretched(own[i], width) for i in members])
            for row, i in enumerate(members):
                start = offset + row * width
                found[own[i]] = torch.arange(start, start + lengths[i])
            offset += tokens.numel()
            self._groups.append((_unless_trivial(tokens.flatten(), len(found), device), len(members), width))
        self._found = _unless_trivial(found, offset, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """``[1, H, T, D]`` to ``[1, T, H, D]``."""
        self.layers_seen.add(layer)
        flat = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
        parts = []
        for tokens, rows, width in self._groups:
            q, k, v = (_select(x, tokens).unflatten(0, (rows, width)).transpose(1, 2) for x in flat)
            attended = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=q.shape[1] != k.shape[1]
            )
            parts.append(attended.transpose(1, 2).flatten(0, 1))
        return _select(torch.cat(parts) if len(parts) > 1 else parts[0], self._found).unsqueeze(0)


def _stretched(tokens: Tensor, width: int) -> Tensor:
    """A sequence made ``width`` long by repeating its last token, which no earlier one attends to."""
    return torch.cat([tokens, tokens[-1:].expand(width - len(tokens))])


def _unless_trivial(index: Tensor, count: int, device: torch.device) -> Tensor | None:
    """``index`` on the device, or ``None`` when selecting by it from ``count`` rows would change nothing."""
    return None if torch.equal(index, torch.arange(count)) else index.to(device)


def _select(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else x.index_select(0, index)


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped so that no sequence is shorter than half the longest of its group, longest first."""
    groups: list[list[int]] = []
    for index in sorted((i for i, n in enumerate(lengths) if n), key=lambda i: (-lengths[i], i)):
        if groups and 2 * lengths[index] >= lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]
