"""Cutting a batch into micro-batches, and packing a micro-batch into one sequence without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.errors import BatchError


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each item into the first bin with room for it; an item above `capacity` gets a bin of its own.

    `first_fit([100, 200, 300], 300)` is `[[0, 1], [2]]`.
    """
    bins: list[list[int]] = []
    loads: list[int] = []
    for item, length in enumerate(lengths):
        slot = next((slot for slot, load in enumerate(loads) if load + length <= capacity), None)
        if slot is None:
            bins.append([item])
            loads.append(length)
        else:
            bins[slot].append(item)
            loads[slot] += length
    return bins


def micro_batches(
    batch_lengths: Sequence[int],
    *,
    micro_batch_size: int | None,
    max_tokens: int,
    atoms: Sequence[int] | None = None,
) -> list[list[int]]:
    """Cut a batch into micro-batches; every sample is in exactly one, and equal input gives equal output.

    Args:
        batch_lengths: tokens of each sample.
        micro_batch_size: atoms per micro-batch, in order; the token budget then does not apply.
        max_tokens: token budget of a micro-batch; only an atom that exceeds it alone goes over.
        atoms: per sample the id of its atom; samples of one atom stay together (the two sides of a pair).
            None: every sample is an atom.

    Returns:
        Sample positions per micro-batch, ascending within each; micro-batches ordered by first position, with
        token counts balanced as far as the budget allows.

    Raises:
        BatchError: `micro_batch_size` or `max_tokens` below 1.
    """
    limit = max_tokens if micro_batch_size is None else micro_batch_size
    if limit < 1:
        raise BatchError(f"micro_batch_size or max_tokens is {limit}; it must be at least 1")
    members: dict[int, list[int]] = {}
    for position, atom in enumerate(range(len(batch_lengths)) if atoms is None else atoms):
        members.setdefault(atom, []).append(position)
    groups = list(members.values())
    if micro_batch_size is None:
        bins = _balanced([sum(batch_lengths[position] for position in group) for group in groups], max_tokens)
    else:
        count = len(groups)
        bins = [list(range(start, min(start + limit, count))) for start in range(0, count, limit)]
    return sorted(sorted(position for atom in bin_ for position in groups[atom]) for bin_ in bins)


def _balanced(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The bins of first fit, refilled longest item first into the emptiest where that keeps the budget."""
    fitted = first_fit(lengths, capacity)
    bins: list[list[int]] = [[] for _ in fitted]
    loads = [0] * len(fitted)
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        slot = loads.index(min(loads))
        bins[slot].append(item)
        loads[slot] += lengths[item]
    keeps_budget = all(bin_ and (load <= capacity or len(bin_) == 1) for bin_, load in zip(bins, loads, strict=True))
    return bins if keeps_budget else fitted


def pack(batch: Batch, device: torch.device | str) -> Batch:
    """Concatenate the samples of a micro-batch and move everything to `device`; no token is padding.

    Args:
        batch: unpacked batch of B samples with T tokens in all.

    Returns:
        A new batch whose `tokens` and `position_ids` are int64 [1, T], positions restarting at 0 for each
        sample; `cu_seqlens` is int32 [B+1] (each sample's start, then T), `unconcat_tokens` B tensors [L].

    Raises:
        BatchError: the batch has no sample.
    """
    tokens: list[Tensor] = batch["tokens"]
    if not tokens:
        raise BatchError("an empty micro-batch cannot be packed")
    lengths = [len(ids) for ids in tokens]
    flat = torch.cat(tokens).to(device)
    starts = torch.cumsum(torch.tensor([0, *lengths]), 0)
    return {
        **{key: _moved(value, device) for key, value in batch.items() if key != "tokens"},
        "tokens": flat[None],
        "unconcat_tokens": list(torch.split(flat, lengths)),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).to(device)[None],
        "cu_seqlens": starts.to(device=device, dtype=torch.int32),
    }


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [item.to(device) for item in value]
    return value
