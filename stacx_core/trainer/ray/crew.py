"""All actors of a run: started together, called together, ended together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from stacx_core.errors import StacxError, WorkerError
from stacx_core.trainer.pools import Pool
from stacx_core.trainer.ray.actor import Home, RoleActor
from stacx_core.trainer.ray.cluster import Cluster
from stacx_core.trainer.ray.failures import Failure, Kind
from stacx_core.trainer.ray.watch import TICK, Member, Watch

START_SECONDS = 600.0
"""How long the processes may take to start and to import what they need."""

ENDING_SECONDS = 5.0
"""How long a node may take to end a process that does not end itself."""

MARGIN_SECONDS = 5.0
"""How much longer than a ping to wait for the cause of a failure that has another one."""


class Crew:
    """The actors of all pools.

    Args:
        cluster: Where they are placed.
        pools: What they hold; each has a placement group.
        seconds: How long an actor may take to answer a ping.
    """

    def __init__(self, cluster: Cluster, pools: Sequence[Pool], seconds: float) -> None:
        self._seconds = seconds
        self.members = [
            Member(pool.name, rank, actor)
            for index, pool in enumerate(pools)
            for rank, actor in enumerate(_actors(cluster, index, pool))
        ]
        self._homes: dict[int, Home] = {}
        self._failed: StacxError | None = None
        self._watch = Watch(self.members, seconds)

    def of(self, pool: str) -> list[Member]:
        """The actors of a pool, by rank."""
        return [member for member in self.members if member.pool == pool]

    def call(self, method: str, *args: Any, to: Sequence[Member] | None = None, seconds: float | None = None) -> Any:
        """Call a method of all actors, or of some, with the same arguments.

        Returns:
            The answers, in the order of the actors.

        Raises:
            StacxError: What an actor raised.
            WorkerError: One died, stopped, or raised another error; the first cause, where there are several.
        """
        members = self.members if to is None else to
        return self.each({id(member): args for member in members}, method, members, seconds)

    def each(
        self, args: Mapping[int, Sequence[Any]], method: str, members: Sequence[Member], seconds: float | None = None
    ) -> list[Any]:
        """As :meth:`call`, with arguments by the identity of the member."""
        self._check()
        calls = {getattr(member.actor, method).remote(*args[id(member)]): member for member in members}
        answers = self._gather(calls, seconds)
        return [answers[id(member)] for member in members]

    def _gather(self, calls: dict[Any, Member], seconds: float | None = None) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        waiting = dict(calls)
        deadline = time.monotonic() + seconds if seconds else None
        with self._watch.attended():
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=TICK)
                for ref in done:
                    member = waiting.pop(ref)
                    try:
                        answers[id(member)] = ray.get(ref)
                    except Exception as problem:
                        raise self._first(Failure.of(member.where, member.log, problem), waiting) from problem
                self._check()
                if deadline and time.monotonic() > deadline:
                    late = ", ".join(member.where for member in waiting.values())
                    raise WorkerError(f"{late}: not ready after {seconds:g} s")
        return answers

    def _check(self) -> None:
        """Raise what made a call fail, or what the watch has found: processes may wait for those that failed."""
        if self._failed is not None:
            raise self._failed
        self._watch.check()

    def _first(self, failure: Failure, waiting: dict[Any, Member]) -> StacxError:
        """What the run ends with, which a failed process made known or one that it stood alone without."""
        self._failed = self._cause(failure, waiting).error
        return self._failed

    def _cause(self, failure: Failure, waiting: dict[Any, Member]) -> Failure:
        """The cause of a failure that may have another one: what another actor raises, or its death."""
        deadline = time.monotonic() + self._seconds + MARGIN_SECONDS
        while failure.kind is Kind.ALONE and time.monotonic() < deadline:
            done = ray.wait(list(waiting), timeout=TICK)[0] if waiting else []
            for ref in done:
                member = waiting.pop(ref)
                try:
                    ray.get(ref)
                except Exception as problem:
                    failure = min(failure, Failure.of(member.where, member.log, problem), key=lambda found: found.kind)
            if self._watch.failure is not None:
                return min(failure, self._watch.failure, key=lambda found: found.kind)
            self._watch.pause()
        return failure

    def stream(self, method: str, *args: Any, to: Sequence[Member]) -> Iterator[Any]:
        """What a generator of the first of some actors gives, of which all are run at the same time.

        Raises:
            StacxError, WorkerError: See :meth:`call`.
        """
        self._check()
        streaming = {"num_returns": "streaming", "_generator_backpressure_num_objects": 2}
        streams = [getattr(member.actor, method).options(**streaming).remote(*args) for member in to]
        waiting = {stream.completed(): member for stream, member in zip(streams, to, strict=True)}
        source = streams[0]
        with self._watch.attended():
            while True:
                ready, _ = ray.wait([source], timeout=TICK)
                self._check()
                if not ready:
                    continue
                try:
                    item = ray.get(next(source))
                except StopIteration:
                    break
                except Exception as problem:
                    raise self._first(Failure.of(to[0].where, to[0].log, problem), waiting) from problem
                yield item
        self._gather(waiting)

    def settle(self, homes: Sequence[Home]) -> None:
        """Take note of where the actors live."""
        for member, home in zip(self.members, homes, strict=True):
            member.home = f"process {home.pid} on {home.address}"
            self._homes[id(member)] = home

    def close(self) -> None:
        """End all actors, also those that have stopped."""
        self._watch.stop()
        for member in self.members:
            with suppress(Exception):
                ray.kill(member.actor)
        here = ray.get_runtime_context().get_node_id()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        away = []
        for home in self._homes.values():
            if home.node == here:
                _end(home.pid)
            elif home.node in alive:
                strategy = NodeAffinitySchedulingStrategy(home.node, soft=False)
                away.append(ray.remote(_end).options(num_cpus=0, scheduling_strategy=strategy).remote(home.pid))
        if away:
            ray.wait(away, num_returns=len(away), timeout=ENDING_SECONDS)
        self._homes = {}


def _actors(cluster: Cluster, index: int, pool: Pool) -> Iterator[Any]:
    """The actors of a pool, by rank, each in the bundle of its node."""
    kind: Any = ray.remote(concurrency_groups={"ping": 1, "saving": 1})(RoleActor)  # type: ignore[call-overload]
    for bundle, count in enumerate(pool.nodes):
        strategy = PlacementGroupSchedulingStrategy(cluster.groups[index], placement_group_bundle_index=bundle)
        for _ in range(count):
            yield kind.options(num_cpus=1, num_gpus=int(cluster.gpus), scheduling_strategy=strategy).remote()


def _end(pid: int) -> None:
    """Kill one of our actors, unless it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if RoleActor.__name__.encode() not in file.read():
                return
    except OSError:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
