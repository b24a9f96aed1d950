"""The Ray that a run uses: its own on this machine, or a cluster that runs already."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any, TextIO, cast

import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.trainer.pools import Pool

OBJECT_STORE_BYTES = 2**30
"""Shared memory of a private Ray: a rollout's batch, and a few buckets of weights on their way to the engine."""

PLACING_SECONDS = 30.0
"""How long to wait for what others still use."""

PRINTS = "ray_listen_error_messages"
"""Name of the thread in which Ray prints of every process that died; the run says it itself, and in fewer words."""

KNOCK_SECONDS = 10.0
"""How long a cluster may take to answer; Ray itself tries for minutes."""


def knock(address: str) -> None:
    """Make sure that something listens at HOST:PORT; another kind of address is left to Ray.

    Raises:
        OSError: Nothing does.
        ValueError: It is the address of a Ray client, through which processes cannot be placed.
    """
    if "://" in address:
        raise ValueError("give HOST:PORT, or auto")
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        # Ray listens at the node's own address.
        where = ray.util.get_node_ip_address() if host in ("localhost", "127.0.0.1") else host
        socket.create_connection((where, int(port)), KNOCK_SECONDS).close()


class _Output:
    """The standard output without what that thread writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == PRINTS else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _undivided() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is done: of a Ray that was begun, processes and files would stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    old = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


class Cluster:
    """A connection to Ray, and the places of a run's processes there.

    A Ray to which this process is connected already is used as it is.

    Args:
        args: The completed arguments.
        pools: What is to be placed.

    Raises:
        ConfigError: No cluster is at the address, or it has not enough CPUs or GPUs.
    """

    def __init__(self, args: Args, pools: Sequence[Pool]) -> None:
        self.groups: list[PlacementGroup] = []
        self._ours = not ray.is_initialized()
        self._until_closed = ExitStack()
        self._needed = args.num_nodes * args.num_gpus_per_node
        try:
            if self._ours:
                self._connect(args)
            self.gpus = args.device != "cpu" and bool(ray.cluster_resources().get("GPU"))
            self._check(args)
            self.groups = [self._place(pool) for pool in pools]
        except BaseException:
            self.close()
            raise

    def _connect(self, args: Args) -> None:
        self._until_closed.enter_context(redirect_stdout(cast(TextIO, _Output(sys.stdout))))
        common: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if args.ray_address is None:
            gpus = torch.cuda.device_count() if args.device != "cpu" else 0
            own = {"num_cpus": max(os.cpu_count() or 1, self._needed), "num_gpus": gpus, "include_dashboard": False}
            # Not where TMPDIR may lead: the paths of Ray's sockets must be short.
            session = TemporaryDirectory(prefix="stacx-ray-", dir="/tmp", ignore_cleanup_errors=True)
            folder = self._until_closed.enter_context(session)
            with _undivided():
                ray.init("local", object_store_memory=OBJECT_STORE_BYTES, _temp_dir=folder, **own, **common)
            return
        try:
            knock(args.ray_address)
            ray.init(args.ray_address, **common)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--ray-address {args.ray_address}: no Ray cluster answers there: {str(error).splitlines()[0]}",
                "start one with `ray start --head`, or leave --ray-address out to train on this machine",
            ) from error

    def _check(self, args: Args) -> None:
        """Refuse a cluster that could never hold the run."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        kind = "GPU" if self.gpus else "CPU"
        wanted = f"--num-nodes {args.num_nodes} x --num-gpus-per-node {args.num_gpus_per_node}"
        if args.device == "cuda" and not self.gpus:
            raise ConfigError("--device cuda: the Ray cluster has no GPU; use --device cpu or auto")
        fitting = [node for node in nodes if node.get(kind, 0) >= args.num_gpus_per_node]
        if len(fitting) < args.num_nodes:
            there = ", ".join(f"{node.get(kind, 0):g}" for node in nodes)
            raise ConfigError(
                f"{wanted} needs {args.num_nodes} node(s) with {args.num_gpus_per_node} {kind}(s) each, and the Ray "
                f"cluster has {len(nodes)} node(s) with {there} {kind}(s)",
                "lower the flags, or add nodes to the cluster",
            )

    def _place(self, pool: Pool) -> PlacementGroup:
        """Reserve a bundle on each of the pool's nodes."""
        bundles = [self._resources(count) for count in pool.nodes]
        group: PlacementGroup = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "PACK")
        if group.wait(PLACING_SECONDS):
            return group
        remove_placement_group(group)
        free = ray.available_resources()
        raise ConfigError(
            f"pool {pool.name!r} needs {' + '.join(map(str, pool.nodes))} process(es) on {len(bundles)} node(s), for "
            f"which the Ray cluster has no room: {free.get('CPU', 0):g} CPU(s) and {free.get('GPU', 0):g} GPU(s) are "
            "free",
            "wait for others to finish, or add nodes to the cluster",
        )

    def _resources(self, processes: int) -> dict[str, float]:
        return {"CPU": processes, "GPU": processes} if self.gpus else {"CPU": processes}

    def close(self) -> None:
        """Give back the places, and end the Ray that this run started."""
        for group in self.groups:
            remove_placement_group(group)
        self.groups = []
        try:
            if self._ours:
                ray.shutdown()  # Also a Ray whose start was broken off.
        finally:
            self._until_closed.close()
