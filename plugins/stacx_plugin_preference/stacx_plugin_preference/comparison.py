"""Which samples of a micro-batch are compared, and what is summed over each of their responses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stacx_core import Batch, BatchError


@dataclass(frozen=True)
class Pairs:
    """The pairs of a micro-batch.

    Fields:
        chosen, rejected: ``[P]`` int64 sample positions; entry p of both is the same pair.
        live: ``[P]`` bool, False where a side has no trained token: such a pair says nothing and is left out.
    """

    chosen: Tensor
    rejected: Tensor
    live: Tensor


def find_pairs(batch: Batch) -> Pairs:
    """The pairs that ``pair_ids`` and ``is_chosen`` describe, in whatever order their samples stand.

    Raises:
        BatchError: a pair without exactly one chosen and one rejected sample, naming it.
    """
    members: dict[int, tuple[list[int], list[int]]] = {}
    for position, (pair, is_chosen) in enumerate(zip(batch["pair_ids"], batch["is_chosen"], strict=True)):
        members.setdefault(pair, ([], []))[0 if is_chosen else 1].append(position)
    for pair, (chosen, rejected) in members.items():
        if len(chosen) != 1 or len(rejected) != 1:
            raise BatchError(
                f"pair {pair} has {len(chosen)} chosen and {len(rejected)} rejected samples in its micro-batch; "
                "give each pair one of either, with the same pair_id"
            )
    trained = token_counts(batch) > 0
    positions = torch.tensor([[chosen[0], rejected[0]] for chosen, rejected in members.values()], device=trained.device)
    first, second = positions.unbind(1)
    return Pairs(first, second, trained[first] & trained[second])


def token_counts(batch: Batch) -> Tensor:
    """``[B]`` int64: trained tokens of each sample."""
    return torch.stack([mask.count_nonzero() for mask in batch["loss_masks"]])


def sample_sums(values: Tensor, batch: Batch) -> Tensor:
    """``[B]``: the sum over each sample of ``[N]`` values that are 0 at masked tokens.

    Each sum is taken over its own slice, so that it does not depend on what else is in the micro-batch.
    """
    return torch.stack([part.sum() for part in torch.split(values, list(batch["response_lengths"]))])
