"""Which roles share processes, and how many processes each group of roles has."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.modality import LANGUAGE
from stacx_core.ray_knobs import RAY_KNOBS
from stacx_core.trainer.models import active_roles, count_models
from stacx_core.trainer.syncs import active_syncs


@dataclass(frozen=True)
class Pool:
    """Processes that hold the same roles; the first role of a recipe that shares its processes with none is alone.

    Attributes:
        name: Of the role whose processes these are.
        roles: Names of all roles that live on them.
        nodes: How many of the processes are on each of its nodes.
    """

    name: str
    roles: tuple[str, ...]
    nodes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of processes."""
        return sum(self.nodes)


def check_role_workers(config: TrainingConfig, args: Args) -> Args:
    """Decide where roles are trained, and how many processes a node has.

    Raises:
        ConfigError: Ray is missing, the models are of another modality than language, knobs contradict each other or
            would be ignored, or the processes cannot be shared out among the recipe's pools.
    """
    kind = args.role_workers or ("ray" if args.backend == "megatron" else "local")
    if kind == "local":
        _check_local(args)
        return args.replace("default", role_workers=kind)
    if config.modality != LANGUAGE:
        raise ConfigError(
            f"recipe {config.name!r} is of modality {config.modality.name!r}, and --role-workers ray, with --backend "
            "megatron too, trains language models alone; leave both out"
        )
    if find_spec("ray") is None:
        raise ConfigError("--role-workers ray needs Ray: pip install 'stacx-core[ray]'")
    if args.num_nodes > 1 and args.ray_address is None:
        raise ConfigError(
            f"--num-nodes {args.num_nodes} needs a Ray cluster of that many nodes; name it with --ray-address",
            "start it with `ray start --head` on one node and `ray start --address ...` on the others",
        )
    if args.num_gpus_per_node is None:
        args = args.replace("default", num_gpus_per_node=_per_node(config, args))
    args = args.replace("default", role_workers=kind)
    pools_of(config, args)
    return args


def _check_local(args: Args) -> None:
    if args.backend == "megatron":
        raise ConfigError("--backend megatron trains on several processes; leave --role-workers local out, or use ray")
    for knob in RAY_KNOBS:
        given = getattr(args, knob.name) != knob.default and not args.is_default(knob.name)
        if given and knob.name != "role_workers":
            raise ConfigError(f"{knob.flag} has no effect without --role-workers ray; add it, or leave it out")


def check_offload(config: TrainingConfig, args: Args) -> None:
    """Refuse to offload roles where no process holds two.

    Raises:
        ConfigError: Naming the recipe.
    """
    if not args.offload_roles:
        return
    roles = active_roles(config, args)
    names = shared_roles(config, args).values() if args.role_workers == "ray" else [[role.name for role in roles]]
    processes = [[role for role in roles if role.name in together] for together in names]
    if all(count_models(together, active_syncs(config, args), args) < 2 for together in processes):
        raise ConfigError(
            f"--offload-roles has no effect: no process of recipe {config.name!r} holds more than one model under "
            "these settings; leave it out"
        )


def pools_of(config: TrainingConfig, args: Args) -> list[Pool]:
    """The recipe's pools, each with an equal share of the processes, node after node.

    Raises:
        ConfigError: The processes do not divide, or a pool's do not make up whole replicas of the model.
    """
    shared = shared_roles(config, args)
    total = args.num_nodes * args.num_gpus_per_node
    given = f"{total} process(es) (--num-nodes {args.num_nodes} x --num-gpus-per-node {args.num_gpus_per_node})"
    named = f"{len(shared)} pool(s) of recipe {config.name!r} ({', '.join(shared)})"
    size, rest = divmod(total, len(shared))
    if rest or not size:
        raise ConfigError(f"{given} cannot be shared out equally among the {named}; use a multiple of {len(shared)}")
    replica = _replica(args)
    if args.backend == "torch" and size > 1:
        raise ConfigError(
            f"{given} are more than the {named} need: with --backend torch each has one process",
            f"use {len(shared)} in all, or --backend megatron",
        )
    if size % replica:
        raise ConfigError(
            f"{given} give each of the {named} {size}, which do not divide into replicas of {replica} "
            f"(--tensor-model-parallel-size {args.tensor_model_parallel_size} x --pipeline-model-parallel-size "
            f"{args.pipeline_model_parallel_size} x --context-parallel-size {args.context_parallel_size})",
            f"use a multiple of {replica * len(shared)} processes",
        )
    return [
        Pool(name, roles, _nodes(range(index * size, (index + 1) * size), args.num_gpus_per_node))
        for index, (name, roles) in enumerate(shared.items())
    ]


def shared_roles(config: TrainingConfig, args: Args) -> dict[str, tuple[str, ...]]:
    """Name of each pool -> the roles of the run that share it."""
    roles = {role.name: role for role in config.roles}
    found: dict[str, tuple[str, ...]] = {}
    for role in active_roles(config, args):
        owner = _owner(role, roles)
        found[owner] = (*found.get(owner, ()), role.name)
    return found


def _owner(role: ModelRole, roles: dict[str, ModelRole]) -> str:
    while role.pool is not None:
        role = roles[role.pool]
    return role.name


def _per_node(config: TrainingConfig, args: Args) -> int:
    """Processes of a node when every pool has one replica."""
    needed = len(shared_roles(config, args)) * _replica(args)
    if needed % args.num_nodes:
        raise ConfigError(
            f"--num-nodes {args.num_nodes} does not divide the {needed} processes that recipe {config.name!r} needs at "
            "least; say how many there are with --num-gpus-per-node"
        )
    return int(needed // args.num_nodes)


def _replica(args: Args) -> int:
    """Processes of one replica of a model."""
    if args.backend == "torch":
        return 1
    return int(args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size)


def _nodes(processes: range, per_node: int) -> tuple[int, ...]:
    """How many of these processes, numbered over all nodes, are on each node."""
    on = [process // per_node for process in processes]
    return tuple(on.count(node) for node in sorted(set(on)))
