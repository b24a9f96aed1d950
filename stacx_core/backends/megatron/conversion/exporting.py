"""From the stages of all processes to the weights of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from stacx_core.backends.megatron.conversion.weights import Source, Weight, weights
from stacx_core.backends.megatron.model import Stage
from stacx_core.planning.layout import Layout


def export(stage: Stage, hf_config: Any, layout: Layout, to: int | None = 0) -> Iterator[tuple[str, Tensor]]:
    """Gather the model's weights one after the other, in the order of the Hugging Face model.

    All processes iterate at the same time. No process ever has more of other processes' weights than one weight.

    Args:
        to: The rank that gets the weights, or None for all ranks. The others' iterators are empty.

    Yields:
        Name, and the whole weight in the stage's dtype on its device. The weight of the process' own parameter may
        share its memory: copy what is kept.
    """
    parameters = dict(stage.named_parameters())
    device, dtype = next((value.device, value.dtype) for value in parameters.values())
    ranks = _Ranks.known(layout)
    for weight in weights(hf_config, layout, stage.head):
        if weight.copies:
            continue
        holders = ranks.holders(weight, layout.tensor)
        mine: list[Tensor] = []
        if dist.get_rank() in holders:
            mine = weight.split(parameters[weight.parameter].detach(), layout.tensor)
        for index, source in enumerate(weight.sources):
            own = mine[index] if mine else None
            whole = _gather(source, own, holders, layout.tensor, to, (device, dtype))
            if whole is not None:
                yield source.name, whole


@dataclass(frozen=True)
class _Ranks:
    """Where the processes stand: stage, tensor- and expert-parallel rank of each."""

    places: tuple[tuple[int, int, int], ...]

    @classmethod
    def known(cls, layout: Layout) -> _Ranks:
        own = (
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.get_expert_model_parallel_rank(),
        )
        places: list[Any] = [None] * layout.world_size
        dist.all_gather_object(places, own)
        return cls(tuple(places))

    def holders(self, weight: Weight, tensor: int) -> list[int]:
        """The first process that has each share of a weight, or the whole of it when it is not shared."""
        if weight.sources[0].cut is not None:
            return [self._first(weight.stage, rank, None) for rank in range(tensor)]
        return [self._first(weight.stage, None, weight.expert)]

    def _first(self, *wanted: int | None) -> int:
        return next(
            rank
            for rank, place in enumerate(self.places)
            if all(want in (None, have) for want, have in zip(wanted, place, strict=True))
        )


def _gather(
    source: Source, own: Tensor | None, holders: list[int], tensor: int, to: int | None, kind: tuple[Any, torch.dtype]
) -> Tensor | None:
    """The whole weight on the ranks that get it."""
    rank = dist.get_rank()
    parts = []
    for index, holder in enumerate(holders):
        start, stop = source.share(tensor, index)
        shape = list(source.shape)
        if source.cut is not None:
            shape[source.cut] = stop - start
        part = None
        if rank == holder and own is not None:
            part = own.narrow(source.cut, 0, stop - start) if source.cut is not None else own
        parts.append(_moved(part, shape, holder, to, kind))
    if to not in (None, rank):
        return None
    whole = [part for part in parts if part is not None]
    return torch.cat(whole, source.cut or 0) if len(whole) > 1 else whole[0]


def _moved(
    part: Tensor | None, shape: list[int], holder: int, to: int | None, kind: tuple[Any, torch.dtype]
) -> Tensor | None:
    """One share, on the ranks that get it."""
    rank = dist.get_rank()
    if holder == to or dist.get_world_size() == 1:
        return part
    if rank not in (holder, to) and to is not None:
        return None
    buffer = part.contiguous() if part is not None else torch.empty(shape, device=kind[0], dtype=kind[1])
    if to is None:
        dist.broadcast(buffer, holder)
    elif rank == holder:
        dist.send(buffer, to)
        return None
    else:
        dist.recv(buffer, holder)
    return buffer
