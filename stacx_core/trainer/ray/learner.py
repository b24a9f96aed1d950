"""The roles of a run in processes of Ray, as the trainer sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ray
from torch import nn

from stacx_core.backends.model import DTYPES, load_model, pick_device
from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.data.sample import Sample
from stacx_core.knobs import Args
from stacx_core.trainer.learner import policy_role
from stacx_core.trainer.models import active_roles
from stacx_core.trainer.pools import Pool, pools_of
from stacx_core.trainer.ray.actor import Address, Bridge, Home
from stacx_core.trainer.ray.buckets import Receiver
from stacx_core.trainer.ray.cluster import Cluster
from stacx_core.trainer.ray.crew import START_SECONDS, Crew
from stacx_core.trainer.ray.parcel import Parcel
from stacx_core.trainer.syncs import active_syncs


class RayLearner:
    """Sends every process of every pool one call at a time, and answers with what the first of each pool says.

    Args:
        cluster: Where the processes are.
        crew: The processes, with their roles loaded.
        pools: What they hold.
        policy: The role whose model the engine generates with.
        args: The completed arguments.
    """

    def __init__(self, cluster: Cluster, crew: Crew, pools: Sequence[Pool], policy: ModelRole, args: Args) -> None:
        self._cluster, self._crew, self._policy, self._args = cluster, crew, policy, args
        pool = next(pool for pool in pools if policy.name in pool.roles)
        self._policy_members = crew.of(pool.name)
        self._receiver: Receiver | None = None
        self._closed = False

    def update(self, batch: Batch, completed: int) -> dict[str, float]:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        return _merged(self._crew.call("update", ray.put(batch), completed))

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        return _merged(self._crew.call("evaluate", ray.put(batch)))

    def policy_log_probs(self, sample: Sample) -> list[float]:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        answers = self._crew.call("policy_log_probs", sample, to=self._policy_members)
        scores: list[float] = answers[0]
        return scores

    def policy_model(self) -> nn.Module:
        """See :class:`stacx_core.trainer.learner.Learner`; one model, which every call gives the newest weights."""
        if self._receiver is None:
            dtype, device = DTYPES[self._args.dtype], pick_device(self._args.device)
            self._receiver = Receiver(load_model(self._args.hf_checkpoint, dtype, device, self._policy.head))
        for bucket in self._crew.stream("weights", self._args.update_weight_buffer_size, to=self._policy_members):
            self._receiver.take(bucket)
        return self._receiver.model

    def save(self, folder: Path) -> Collection[str]:
        """See :class:`stacx_core.trainer.learner.Learner`; all nodes must see the folder."""
        return [name for names in self._crew.call("save", folder.resolve()) for name in names or ()]

    def finish_save(self) -> None:
        """See :class:`stacx_core.trainer.learner.Learner`."""
        self._crew.call("finish_save")

    def close(self) -> None:
        """End all processes, and the Ray that this run started."""
        if self._closed:
            return
        self._closed = True
        try:
            self._crew.close()
        finally:
            self._cluster.close()


def ray_learner(config: TrainingConfig, args: Args, checkpoint: Path | None, num_rollout: int) -> RayLearner:
    """Start the processes and load the roles.

    Args:
        config: The recipe.
        args: Completed by :func:`stacx_core.trainer.plan.complete`.
        checkpoint: Where to go on from; all nodes must see it.
        num_rollout: Rollouts of the whole run.

    Raises:
        ConfigError: The cluster cannot hold the run, or the layout does not fit a model.
        PluginError: A node has other versions or another recipe.
        ModelError: A model cannot be loaded.
        WorkerError: A process died.
    """
    pools = pools_of(config, args)
    cluster = Cluster(args, pools)
    try:
        crew = Crew(cluster, pools, args.worker_timeout)
        try:
            _settle(crew, pools, config, args, cluster.gpus)
            _load(crew, pools, checkpoint, num_rollout)
        except BaseException:
            crew.close()
            raise
    except BaseException:
        cluster.close()
        raise
    return RayLearner(cluster, crew, pools, policy_role(active_roles(config, args)), args)


def _settle(crew: Crew, pools: Sequence[Pool], config: TrainingConfig, args: Args, gpus: bool) -> None:
    """Let the processes of each pool, and those of pools with syncs between them, meet."""
    parcel = ray.put(Parcel.of(config, _anywhere(config, args)))
    given = {id(member): (member.log, parcel) for member in crew.members}
    homes: list[Home] = crew.each(given, "home", crew.members, START_SECONDS)
    crew.settle(homes)
    firsts = [crew.of(pool.name)[0] for pool in pools]
    where = {id(member): home.address for member, home in zip(crew.members, homes, strict=True)}
    ports = crew.each({id(m): (p.size,) for m, p in zip(firsts, pools, strict=True)}, "store", firsts)
    stores = {m.pool: (where[id(m)], port) for m, port in zip(firsts, ports, strict=True)}
    bridges = _bridges(pools, config, args, stores)
    joins = {
        id(member): (stores[pool.name], member.rank, pool.size, bridges[pool.name], gpus)
        for pool in pools
        for member in crew.of(pool.name)
    }
    crew.each(joins, "join", crew.members, START_SECONDS)


def _anywhere(config: TrainingConfig, args: Args) -> Args:
    """The arguments with the folders that processes read or write as paths that do not depend on where they start."""
    models = {"hf_checkpoint", "ref_load", *(role.load_arg for role in config.roles if role.load_arg)}
    folders = {name: args.get(name, None) for name in models}
    found = {name: str(Path(path).resolve()) for name, path in folders.items() if path and Path(path).is_dir()}
    for name, path in found.items():
        args = args.replace(args.origin(name), **{name: path})
    return args.replace(output_dir=str(Path(args.output_dir).resolve()))


def _bridges(
    pools: Sequence[Pool], config: TrainingConfig, args: Args, stores: dict[str, Address]
) -> dict[str, list[Bridge]]:
    """Per pool, the pools that syncs reach from it, everywhere in one order."""
    owner = {role: pool for pool in pools for role in pool.roles}
    found: dict[str, list[Bridge]] = {pool.name: [] for pool in pools}
    done: set[frozenset[str]] = set()
    for sync in active_syncs(config, args):
        ends = owner[sync.src], owner[sync.dst]
        names = frozenset(pool.name for pool in ends)
        if len(names) == 1 or names in done:
            continue
        done.add(names)
        for second, (own, other) in enumerate((ends, ends[::-1])):
            name = f"{ends[0].name}-{ends[1].name}"
            found[own.name].append(Bridge(name, stores[ends[0].name], bool(second), other.roles))
    return found


def _load(crew: Crew, pools: Sequence[Pool], checkpoint: Path | None, num_rollout: int) -> None:
    folder = checkpoint.resolve() if checkpoint else None
    loads = {id(member): (pool.roles, folder, num_rollout) for pool in pools for member in crew.of(pool.name)}
    crew.each(loads, "load", crew.members)


def _merged(answers: Sequence[dict[str, Any] | None]) -> dict[str, float]:
    """The metrics of all pools."""
    return {name: value for answer in answers if answer is not None for name, value in answer.items()}
