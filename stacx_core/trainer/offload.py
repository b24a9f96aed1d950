"""Roles of one process that take turns on its device: the one that computes is there, the others in CPU memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage

from stacx_core.data.batch import Batch
from stacx_core.hookspecs import SyncChannel
from stacx_core.trainer.worker import RoleWorker


class Residence:
    """The memory of a role, on its device or away from it.

    Tensors stay the objects they are; their storages are emptied and filled again. So whatever refers to a tensor goes
    on to do so, views into a buffer of Megatron's as well as an optimizer. Nobody may use a tensor while it is away:
    torch does not notice, and the process dies.

    Args:
        worker: The role, on its device.
    """

    def __init__(self, worker: RoleWorker) -> None:
        self.worker = worker
        self._copies: dict[int, Tensor] = {}
        self._away: list[tuple[UntypedStorage, int, Tensor | None]] = []
        for tensor in worker.kept():
            if not tensor.untyped_storage().resizable():  # a mapped file
                tensor.data = tensor.data.clone()

    def leave(self) -> None:
        """Copy to CPU memory, pinned where the device is a GPU, and free the device's; gradients are forgotten."""
        if self._away:
            return
        optimizer = self.worker.optimizer
        if optimizer is not None:
            optimizer.zero_grad()
        kept = self._storages(self.worker.kept())
        freed = kept | self._storages(() if optimizer is None else optimizer.gradient_buffers())
        self._copies = {key: self._copied(storage, self._copies.get(key)) for key, storage in kept.items()}
        self._away = [(storage, storage.nbytes(), self._copies.get(key)) for key, storage in freed.items()]
        for storage, _, _ in self._away:
            storage.resize_(0)
        torch.cuda.empty_cache()

    def enter(self) -> None:
        """Be on the device again, bit for bit, with gradients of zero."""
        for storage, size, copy in self._away:
            storage.resize_(size)
            memory = _bytes(storage)
            if copy is None:
                memory.zero_()
            else:
                memory.copy_(copy)
        self._away = []

    def _storages(self, tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
        """The memory of tensors on the role's device, each piece once."""
        device = self.worker.device
        found = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
        return {storage._cdata: storage for storage in found}

    @staticmethod
    def _copied(storage: UntypedStorage, copy: Tensor | None) -> Tensor:
        """The storage's bytes, in the memory of an earlier copy of as many."""
        if copy is None or len(copy) != storage.nbytes():
            pinned = storage.device.type == "cuda"
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)
        return copy.copy_(_bytes(storage))


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Turns:
    """Gives the device to the roles that compute.

    Args:
        taken: Whether turns are taken at all; else every role stays where it is.
    """

    def __init__(self, taken: bool) -> None:
        self._taken = taken
        self._residences: list[Residence] = []

    def admit(self, worker: RoleWorker) -> RoleWorker:
        """Let a role take part, which leaves the device to those that are loaded after it; returns the role."""
        if self._taken:
            self._residences.append(Residence(worker))
            self._residences[-1].leave()
        return worker

    def give(self, *workers: RoleWorker) -> None:
        """Let these have the device, and nobody else."""
        for residence in self._residences:
            if residence.worker not in workers:
                residence.leave()
        for residence in self._residences:
            if residence.worker in workers:
                residence.enter()


@dataclass(frozen=True)
class AtHand(SyncChannel):
    """A plugin's channel, which may use the weights of all roles of this process whenever it does something.

    Args:
        channel: The plugin's.
        turns: Who has the device.
        workers: The roles.
    """

    channel: SyncChannel
    turns: Turns
    workers: Collection[RoleWorker]

    def transfer(self, batches: dict[str, Batch]) -> None:
        """See :class:`stacx_core.hookspecs.SyncChannel`."""
        if type(self.channel).transfer is not SyncChannel.transfer:
            self.turns.give(*self.workers)
            self.channel.transfer(batches)

    def after_update(self, completed: int) -> None:
        """See :class:`stacx_core.hookspecs.SyncChannel`."""
        if type(self.channel).after_update is not SyncChannel.after_update:
            self.turns.give(*self.workers)
            self.channel.after_update(completed)
