"""One update of the servers' weights: compared, sent while generation is paused, checked, and then labelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from stacx_core.rollout.sglang.weights.checksums import compare
from stacx_core.rollout.sglang.weights.disk import DiskTransport
from stacx_core.rollout.sglang.weights.distributed import DistributedTransport
from stacx_core.rollout.sglang.weights.everywhere import everywhere, failures
from stacx_core.rollout.sglang.weights.plan import Plan, TrainedWeights, make_plan
from stacx_core.rollout.sglang.weights.served import ServedModel, WeightServer, ask
from stacx_core.rollout.sglang.weights.tensor import TensorTransport
from stacx_core.rollout.sglang.weights.transport import CLEAN_UP_SECONDS, Transport

logger = logging.getLogger(__name__)


def make_transport(mode: str, folder: Path) -> Transport:
    """The transport of ``--update-weight-mode``: ``disk`` through the folder, ``tensor``, or else ``distributed``."""
    if mode == "disk":
        return DiskTransport(folder)
    return TensorTransport() if mode == "tensor" else DistributedTransport()


@dataclass(frozen=True)
class SyncReport:
    """What an update did.

    Args:
        version: The label that every server has now.
        paused_seconds: How long no server generated.
        buckets: In which the weights were sent.
        compared: Tensors of a server whose checksum was compared with the trainer's.
    """

    version: str
    paused_seconds: float
    buckets: int
    compared: int


class WeightSync:
    """Brings weights to servers.

    Args:
        transport: How they travel.
        buffer_bytes: Most bytes of a bucket.
        timeout: Seconds that a server has for one answer, and a few for each after a failure.
        patience: Seconds that it has to say what it runs and to stop generating, by which a dead one is noticed;
            ``timeout`` by default.
        waits: Seconds before a server that is too busy to say what it runs is asked again, once for each.
    """

    def __init__(
        self,
        transport: Transport,
        buffer_bytes: int = 512 * 2**20,
        timeout: float = 600.0,
        patience: float | None = None,
        waits: Sequence[float] = (),
    ) -> None:
        self.transport = transport
        self.buffer_bytes = buffer_bytes
        self.timeout = timeout
        self.patience = timeout if patience is None else min(patience, timeout)
        self.waits = waits

    async def update(self, servers: Sequence[WeightServer], weights: TrainedWeights, version: str) -> SyncReport:
        """Send the weights to all servers, and label them with ``version`` when every one has them.

        Running requests wait, and go on with the new weights on a prompt that is computed anew. After a failure all
        servers generate again, under their old label; those that had a part of the weights hold a mix of old and new
        until the next update succeeds, so do not sample from them before.

        Raises:
            WeightSyncError: The weights do not fit a server, did not reach it, or arrived changed; or a server does not
                answer, in which case its cause is the server's own error.
        """
        targets = await everywhere(servers, lambda server: ask(server, self.patience, self.waits))
        plan = make_plan(targets, weights, self.buffer_bytes)
        await self.transport.prepare(plan, version)
        began = time.monotonic()
        async with _paused(plan, self.timeout, self.patience):
            await self.transport.send(plan, version, self.timeout)
            compared = await self._check(plan)
            await self._label(plan, version)
        return SyncReport(version, time.monotonic() - began, len(plan.buckets), len(compared))

    async def _check(self, plan: Plan) -> list[str]:
        async def told(target: ServedModel) -> dict[str, str]:
            answer = await target.post(
                "/weights_checker", {"action": "checksum"}, self.timeout, "there are no checksums"
            )
            ranks = enumerate(answer["ranks"])
            return {name + rank * "'": value for rank, part in ranks for name, value in part["checksums"].items()}

        return await asyncio.to_thread(compare, plan, await everywhere(plan.targets, told))

    async def _label(self, plan: Plan, version: str) -> None:
        label = {"new_version": version, "abort_all_requests": False}

        async def publish(target: ServedModel) -> None:
            await target.post("/update_weight_version", label, self.timeout, f"the label {version!r} was not set")

        await everywhere(plan.targets, publish)


@asynccontextmanager
async def _paused(plan: Plan, timeout: float, patience: float) -> AsyncIterator[None]:
    """Keep every server from generating; running requests give up their cache, which can thus be emptied."""

    async def pause(target: ServedModel) -> None:
        await target.post("/pause_generation", {"mode": "retract"}, patience, "generation was not paused")

    async def resume(target: ServedModel, seconds: float = timeout) -> None:
        await target.post("/continue_generation", {}, seconds, "generation was not resumed")

    try:
        await everywhere(plan.targets, pause)
        yield
    except BaseException:
        for failure in await failures(plan.targets, lambda target: resume(target, min(timeout, CLEAN_UP_SECONDS))):
            logger.warning("a server may still be paused: %s", failure)
        raise
    await everywhere(plan.targets, resume)
