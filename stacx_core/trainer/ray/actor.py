"""One process of a pool: its rank's part of the pool's roles."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import ray
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from stacx_core.config import DataSync
from stacx_core.data.batch import Batch
from stacx_core.data.sample import Sample
from stacx_core.hookspecs import SyncChannel
from stacx_core.planning.layout import Layout
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.ray.buckets import Bucket, buckets
from stacx_core.trainer.ray.pairs import Pair, PairChannel
from stacx_core.trainer.ray.parcel import Parcel
from stacx_core.trainer.roles import Part, local_learner

COLLECTIVE_TIMEOUT = timedelta(minutes=60)
"""Longer than any step: the driver notices processes that died or stopped, and ends those that wait for them."""

T = TypeVar("T")
Address = tuple[str, int]


@dataclass(frozen=True)
class Home:
    """Where an actor lives."""

    node: str
    address: str
    pid: int


@dataclass(frozen=True)
class Bridge:
    """A pool that syncs reach from this one.

    Attributes:
        name: Of the two pools, the same on both sides.
        store: Where their processes meet.
        second: Whether this pool is the second of the two.
        roles: Of the other pool.
    """

    name: str
    store: Address
    second: bool
    roles: tuple[str, ...]


class RoleActor:
    """An actor: its methods are called on all actors of a pool at the same time, but for `home`, `ping` and `store`.

    Those of a concurrency group run beside the others.
    """

    def __init__(self) -> None:
        self._stores: list[c10d.Store] = []
        self._learner: LocalLearner | None = None

    @ray.method(concurrency_group="ping")
    def ping(self) -> None:
        """Answer, whatever else is under way."""

    def home(self, log: str, parcel: Parcel) -> Home:
        """Where this is, once it is sure that it has what the driver has.

        Args:
            log: File in the run's folder that takes what this process prints.
            parcel: The run.

        Raises:
            PluginError: See :meth:`stacx_core.trainer.ray.parcel.Parcel.open`.
        """
        disable_progress_bar()
        set_verbosity_error()
        self._config, self._args = parcel.open()
        _print_into(Path(self._args.output_dir) / log)
        context = ray.get_runtime_context()
        return Home(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def store(self, size: int) -> int:
        """Open the meeting place of the pool's processes; returns its port, which the system chose."""
        host = ray.util.get_node_ip_address()
        store = dist.TCPStore(host, 0, size, True, COLLECTIVE_TIMEOUT, wait_for_workers=False)  # type: ignore[attr-defined]
        self._stores.append(store)
        return int(store.port)

    def join(self, store: Address, rank: int, size: int, bridges: Sequence[Bridge], gpu: bool) -> None:
        """Meet the other processes of the pool, and those of the pools that syncs reach."""
        if not gpu:
            torch.set_num_threads(self._args.num_threads or 1)
        device = torch.device("cuda" if gpu else "cpu")
        self._rank = rank
        dist.init_process_group(
            "nccl" if gpu else "gloo",
            store=self._meeting(store),
            rank=rank,
            world_size=size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        self._pairs: dict[str, Pair] = {}
        for bridge in bridges:
            name = f"{bridge.name}-{rank}"
            pair = Pair(self._meeting(bridge.store), name, bridge.second, device, COLLECTIVE_TIMEOUT)
            self._pairs |= dict.fromkeys(bridge.roles, pair)

    def _meeting(self, address: Address) -> c10d.Store:
        host, port = address
        store: c10d.Store = dist.TCPStore(host, port, None, False, COLLECTIVE_TIMEOUT)  # type: ignore[attr-defined]
        self._stores.append(store)
        return store

    def load(self, roles: Sequence[str], checkpoint: Path | None, num_rollout: int) -> None:
        """Load this rank's part of the pool's roles.

        Raises:
            ConfigError, ModelError, RecipeError: See :func:`stacx_core.trainer.roles.local_learner`.
        """
        if self._args.backend == "megatron":
            from stacx_core.backends.megatron.layout import initialize  # Megatron-core is an extra.

            initialize(Layout.of(self._args, dist.get_world_size()), self._args.seed)
        part = Part(roles, self._across)
        self._learner = local_learner(self._config, self._args, checkpoint, num_rollout, part)

    def _across(self, sync: DataSync, role: str) -> SyncChannel:
        other = sync.dst if role == sync.src else sync.src
        return PairChannel(self._config.name, sync, role, self._pairs[other])

    @property
    def learner(self) -> LocalLearner:
        """The roles, once they are loaded."""
        assert self._learner is not None
        return self._learner

    def update(self, batch: Batch, completed: int) -> dict[str, float] | None:
        """See :class:`stacx_core.trainer.learner.Learner`; the first rank answers, as with all that follow."""
        return self._first(self.learner.update(batch, completed))

    def evaluate(self, batch: Batch) -> dict[str, float] | None:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        return self._first(self.learner.evaluate(batch))

    def policy_log_probs(self, sample: Sample) -> list[float] | None:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        return self._first(self.learner.policy_log_probs(sample))

    def save(self, folder: Path) -> list[str] | None:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        return self._first(list(self.learner.save(folder)))

    @ray.method(concurrency_group="saving")
    def finish_save(self) -> None:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        self.learner.finish_save()

    def weights(self, most: int) -> Iterator[Bucket]:
        """The policy's weights in buckets of at most so many bytes; other ranks than the first give none."""
        yield from buckets(self.learner.policy.weights(), most)

    def _first(self, answer: T) -> T | None:
        return answer if self._rank == 0 else None


def _print_into(path: Path) -> None:
    """Append what this process prints to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
