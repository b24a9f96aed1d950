"""Syncs between roles of different pools: each process of one talks to the process of the same rank of the other."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from stacx_core.config import DataSync
from stacx_core.data.batch import Batch
from stacx_core.hookspecs import SyncChannel
from stacx_core.trainer.syncs import Conversation, converse


class Pair:
    """A group of two processes beside the default group.

    Args:
        store: Where they meet.
        name: Of the group, the same on both ends.
        second: Whether this is the second of the two.
        device: Of the tensors that are sent.
        timeout: Most that the other may let wait.
    """

    def __init__(self, store: c10d.Store, name: str, second: bool, device: torch.device, timeout: timedelta) -> None:
        self.rank, self.device = int(second), device
        backend = dist.Backend("nccl" if device.type == "cuda" else "gloo")
        self._group: Any
        self._group, _ = c10d._new_process_group_helper(
            2,
            self.rank,
            [],
            backend,
            c10d.PrefixStore(name, store),
            group_name=c10d.GroupName(name),
            timeout=timeout,
        )

    def swap(self, said: object) -> Any:
        """Say something that pickles, and return what the other end says."""
        buffer = io.BytesIO()
        torch.save(said, buffer)
        own = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8).to(self.device)
        size = torch.empty(1, dtype=torch.int64, device=self.device)
        self._swap(torch.tensor([len(own)], device=self.device), size)
        other = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        self._swap(own, other)
        return torch.load(io.BytesIO(other.cpu().numpy().tobytes()), weights_only=False)

    def _swap(self, own: Tensor, other: Tensor) -> None:
        if self.rank == 0:
            self._group.send([own], 1, 0).wait()
            self._group.recv([other], 1, 0).wait()
        else:
            self._group.recv([other], 0, 0).wait()
            self._group.send([own], 0, 0).wait()


@dataclass(frozen=True)
class PairChannel(SyncChannel):
    """This process's end of a sync with a role of another pool.

    Args:
        recipe: Name of the recipe.
        sync: The sync.
        role: Its end here.
        pair: The two processes.
    """

    recipe: str
    sync: DataSync
    role: str
    pair: Pair

    def transfer(self, batches: dict[str, Batch]) -> None:
        """Give the other end its keys, and take this end's.

        Raises:
            BatchError: See :func:`stacx_core.trainer.syncs.converse`; both ends raise it.
        """
        batch, sync = batches[self.role], self.sync
        gives, takes = (sync.keys, sync.reverse_keys) if self.role == sync.src else (sync.reverse_keys, sync.keys)
        end = converse(self.recipe, self.role, batch, gives, takes)
        given = end.send(self.pair.swap(next(end)))
        _finish(end, _split(self.pair.swap(_joined(given)), batch["response_lengths"]))


def _finish(end: Conversation, heard: Mapping[str, Any]) -> None:
    try:
        end.send(heard)
    except StopIteration:
        return


def _joined(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Per key one tensor of all samples, which is sent faster than one of each."""
    return {key: torch.cat(list(v)) if v and isinstance(v[0], Tensor) else v for key, v in values.items()}


def _split(values: Mapping[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """Per key the samples again."""
    return {key: list(v.split(list(lengths))) if isinstance(v, Tensor) else v for key, v in values.items()}
