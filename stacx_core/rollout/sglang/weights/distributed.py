"""Weights through a process group of torch, which the trainer and one server form for one update.

A group per server, and per update: a server that fails, leaves or comes back concerns no other, and nothing is left
of a run that was killed.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.everywhere import everywhere, failures
from stacx_core.rollout.sglang.weights.plan import Plan
from stacx_core.rollout.sglang.weights.served import ServedModel
from stacx_core.rollout.sglang.weights.transport import CLEAN_UP_SECONDS, BucketTransport, deliver, described, last

POLL_SECONDS = 0.005


class Group:
    """The trainer, rank 0, and the processes of a server."""

    def __init__(self, target: ServedModel, timeout: float) -> None:
        self.target = target
        self.timeout = timeout
        self.name = f"stacx_{secrets.token_hex(8)}"
        self.size = 1 + target.tp_size
        on_gpu = target.device.startswith("cuda") and torch.cuda.is_available()
        self.device, self.backend = ("cuda", "nccl") if on_gpu else ("cpu", "gloo")
        self._group: Any = None

    async def open(self) -> None:
        """Meet the server at a port that the system chose.

        Raises:
            WeightSyncError: It does not come.
        """
        address = _own_address(self.target.url)
        span = timedelta(seconds=self.timeout)
        store = dist.TCPStore(address, 0, self.size, True, span, wait_for_workers=False)  # type: ignore[attr-defined]
        invited = asyncio.create_task(self._invite(address, store.port))
        while store.num_keys() == 0 and not invited.done():  # joining blocks, so first see that the server comes
            await asyncio.sleep(POLL_SECONDS)
        if invited.done():
            await invited
        failure: RuntimeError | None = None
        try:
            self._group = await asyncio.to_thread(self._join, store, span)
        except RuntimeError as error:
            failure = error
        await invited
        if failure is not None:
            raise self._failure(f"the group with {self.target.url} was not formed", failure) from failure

    async def _invite(self, address: str, port: int) -> None:
        payload = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": self.size}
        payload |= {"group_name": self.name, "backend": self.backend}
        await self.target.post(
            "/init_weights_update_group",
            payload,
            self.timeout,
            f"a server does not join the trainer's process group at {address}:{port}",
            "the server must reach that address; --update-weight-mode tensor needs no connection back",
        )

    def _join(self, store: c10d.Store, timeout: timedelta) -> Any:
        """As SGLang does on its side: a group beside, and without, the default one."""
        group, _ = c10d._new_process_group_helper(
            self.size,
            0,
            [],
            dist.Backend(self.backend),
            c10d.PrefixStore(self.name, store),
            group_name=c10d.GroupName(self.name),
            timeout=timeout,
        )
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(self.size)}
        return group

    async def broadcast(self, named: Sequence[tuple[str, Tensor]], flush: bool, what: str) -> None:
        """Announce a bucket, and send its tensors one by one.

        Args:
            named: The bucket.
            flush: Let the server empty its prefix cache.
            what: The bucket in a message.

        Raises:
            WeightSyncError: The server did not take it.
        """
        tensors = [tensor.to(self.device) for _, tensor in named]
        payload = {
            "names": [name for name, _ in named],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": self.name,
            "flush_cache": flush,
        }
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        try:
            works = [self._group.broadcast([tensor], options) for tensor in tensors]
            await deliver(self.target, "/update_weights_from_distributed", payload, self.timeout, what)
            for work in works:  # it answered, so it has them
                work.wait()
        except WeightSyncError:
            raise
        except RuntimeError as error:
            raise self._failure(f"{what} did not reach {self.target.url}", error) from error

    def _failure(self, what: str, error: BaseException) -> WeightSyncError:
        return WeightSyncError(f"{what}: {error}", url=self.target.url)

    async def close(self) -> None:
        """Leave the group; the server first, which ends a broadcast that it does not take.

        Raises:
            WeightSyncError: The server does not leave it.
        """
        if self._group is None:
            return
        group, self._group = self._group, None
        try:
            named, seconds = {"group_name": self.name}, min(self.timeout, CLEAN_UP_SECONDS)
            await self.target.post("/destroy_weights_update_group", named, seconds, "a process group was not left")
        finally:
            await asyncio.to_thread(dist.destroy_process_group, group)


class DistributedTransport(BucketTransport):
    """Broadcasts tensors: gloo on CPUs, NCCL where both sides have GPUs."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    async def send(self, plan: Plan, version: str, timeout: float) -> None:
        """Form a group with every server, send all buckets, and part."""
        self._groups = [Group(target, timeout) for target in plan.targets]
        try:
            await everywhere(self._groups, Group.open)
            await super().send(plan, version, timeout)
        except BaseException:
            await failures(self._groups, Group.close)
            raise
        await everywhere(self._groups, Group.close)

    async def send_bucket(self, plan: Plan, number: int, timeout: float) -> None:
        """Broadcast a bucket to all servers."""
        named = await asyncio.to_thread(plan.bucket, plan.buckets[number])
        flush, what = last(plan, number), described(plan, number)
        await everywhere(self._groups, lambda group: group.broadcast(named, flush, what))


def _own_address(url: str) -> str:
    """The address of this machine on its way to a server."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))
        return str(probe.getsockname()[0])
