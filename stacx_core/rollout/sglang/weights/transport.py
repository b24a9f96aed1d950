"""What the three transports share: buckets, the session that SGLang asks for, and who is to blame for a failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.everywhere import everywhere, failures
from stacx_core.rollout.sglang.weights.plan import Plan, listed
from stacx_core.rollout.sglang.weights.served import ServedModel

CLEAN_UP_SECONDS = 10.0
"""Most seconds that a server has for an answer after a failure, so that one that is stuck does not hold the run up."""


class Transport(ABC):
    """A way for weights to travel."""

    @abstractmethod
    async def prepare(self, plan: Plan, version: str) -> None:
        """What is refused, or can be done, while the servers still generate."""

    @abstractmethod
    async def send(self, plan: Plan, version: str, timeout: float) -> None:
        """Give every server all weights, and empty its prefix cache; the servers are paused.

        Args:
            plan: What to send where.
            version: Names the weights; the servers' label is not touched.
            timeout: Seconds that a server has for one answer.

        Raises:
            WeightSyncError: Naming the server, and the bucket and the tensors that it did not take.
        """


class BucketTransport(Transport):
    """Sends one bucket after the other, each to all servers at once."""

    async def prepare(self, plan: Plan, version: str) -> None:
        """Refuse what SGLang updates through files only.

        Raises:
            WeightSyncError: A server runs several copies of its model.
        """
        for target in plan.targets:
            if target.dp_size > 1:
                raise WeightSyncError(
                    f"{target.url} runs {target.dp_size} data-parallel copies, which SGLang updates from disk only",
                    "use --update-weight-mode disk, or start that many servers of one copy each",
                    url=target.url,
                )

    async def send(self, plan: Plan, version: str, timeout: float) -> None:
        """Send all buckets within a session of SGLang's; with the last one the caches are emptied."""
        async with _session(plan, timeout):
            for number in range(len(plan.buckets)):
                await self.send_bucket(plan, number, timeout)

    @abstractmethod
    async def send_bucket(self, plan: Plan, number: int, timeout: float) -> None:
        """Send one bucket to all servers."""


async def deliver(target: ServedModel, path: str, payload: dict[str, Any], timeout: float, what: str) -> None:
    """Post what brings weights.

    Raises:
        WeightSyncError: The server did not take it.
    """
    await target.post(
        path,
        payload,
        timeout,
        f"{what} did not reach a server",
        f"its label is still {target.version!r}, but it may hold a part of the new weights: "
        "it must not be sampled from before an update succeeds",
    )


def described(plan: Plan, number: int) -> str:
    """A bucket in a message."""
    return f"bucket {number + 1} of {len(plan.buckets)} ({listed(plan.buckets[number])})"


def last(plan: Plan, number: int) -> bool:
    """Whether no bucket follows."""
    return number == len(plan.buckets) - 1


@asynccontextmanager
async def _session(plan: Plan, timeout: float) -> AsyncIterator[None]:
    """Open SGLang's update session on all servers, and close it whatever happens."""

    async def begin(target: ServedModel) -> None:
        with suppress(WeightSyncError):  # there is one only when a run was killed in the middle of an update
            await end(target)
        await target.post("/begin_weight_update", {}, timeout, "no update was begun")

    async def end(target: ServedModel, seconds: float = timeout) -> None:
        await target.post("/end_weight_update", {}, seconds, "the update was not ended")

    try:
        await everywhere(plan.targets, begin)
        yield
    except BaseException:
        await failures(plan.targets, lambda target: end(target, min(timeout, CLEAN_UP_SECONDS)))
        raise
    await everywhere(plan.targets, end)
