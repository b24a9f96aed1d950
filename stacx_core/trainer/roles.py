"""Loads the roles of a recipe, or those of one pool, into this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.backends.model import DTYPES, pick_device
from stacx_core.config import DataSync, ModelRole, TrainingConfig, resolve_object
from stacx_core.errors import CheckpointError, ConfigError, RecipeError
from stacx_core.hookspecs import SyncChannel
from stacx_core.knobs import Args
from stacx_core.plugins import plugin_host
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.models import active_roles, count_models, uses_reference
from stacx_core.trainer.offload import AtHand, Turns
from stacx_core.trainer.syncs import LocalChannel, active_syncs
from stacx_core.trainer.worker import RoleWorker

logger = logging.getLogger(__name__)
_OTHER_SETTINGS = "go on with the settings the run began with, or begin a new run from its weights"


@dataclass(frozen=True)
class Part:
    """The roles of one process of several.

    Attributes:
        roles: Names of those that it holds.
        across: Makes its end of a sync with a role of another process.
    """

    roles: Collection[str]
    across: Callable[[DataSync, str], SyncChannel]


def local_learner(
    config: TrainingConfig, args: Args, checkpoint: Path | None, num_rollout: int, part: Part | None = None
) -> LocalLearner:
    """The roles of the run in this process.

    Args:
        config: The recipe.
        args: Completed by :func:`stacx_core.trainer.plan.complete`.
        checkpoint: Where to go on from.
        num_rollout: Rollouts of the whole run.
        part: Those that are held here; by default all.

    Raises:
        ConfigError, ModelError: A model is missing or cannot be loaded.
        RecipeError: A plugin's channel needs roles that are not in one process.
    """
    syncs = active_syncs(config, args)
    roles = [role for role in active_roles(config, args) if part is None or role.name in part.roles]
    turns = _turns(roles, syncs, args)
    kind: type[RoleWorker] = resolve_object(config.modality.worker)
    workers = {role.name: turns.admit(_worker(kind, role, role_args(role, args), checkpoint)) for role in roles}
    reference = _reference(syncs, args, workers, turns)
    own = [_channel(config, sync, workers, part) for sync in syncs if {sync.src, sync.dst} & workers.keys()]
    added = _plugin_channels(config, args, workers, turns)
    channels = [*own, *(AtHand(channel, turns, workers.values()) for channel in added)]
    return LocalLearner(config, args, workers, reference, syncs, channels, num_rollout, turns)


def _channel(config: TrainingConfig, sync: DataSync, here: Collection[str], part: Part | None) -> SyncChannel:
    """What runs the ends of a sync that are here."""
    if part is None or {sync.src, sync.dst} <= set(here):
        return LocalChannel(config.name, sync)
    return part.across(sync, sync.src if sync.src in here else sync.dst)


def role_args(role: ModelRole, args: Args) -> Args:
    """The arguments as the role sees them: each override that is set stands in for its host knob."""
    own = {knob: args.get(name) for knob, name in role.overrides.items()}
    return args.replace(f"role {role.name}", **{knob: value for knob, value in own.items() if value is not None})


def _worker(kind: type[RoleWorker], role: ModelRole, args: Args, checkpoint: Path | None) -> RoleWorker:
    """The worker of a role, going on from a checkpoint where there is one.

    Raises:
        CheckpointError: The checkpoint has no such role, or its optimizer trained other weights.
    """
    specialization = resolve_object(role.specialization_cls)(args)
    source = args.get(role.load_arg or "hf_checkpoint", args.hf_checkpoint)
    if checkpoint and (role.trainable or role.stateful):
        source = str(checkpoint / role.name)
        if not (checkpoint / role.name).is_dir():
            raise CheckpointError(f"{checkpoint} has no role {role.name!r}: its run had none", _OTHER_SETTINGS)
    # Weights that move by small steps are kept in fp32, in which the steps are not rounded away.
    dtype = DTYPES["fp32" if role.stateful else args.dtype]
    worker = kind.load(role, specialization, source, dtype, args)
    if checkpoint:
        try:
            worker.load_optimizer(checkpoint)
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"the optimizer's state of role {role.name!r} in {checkpoint} is of other weights: {error}",
                _OTHER_SETTINGS,
            ) from error
    return worker


def _turns(roles: Sequence[ModelRole], syncs: Sequence[DataSync], args: Args) -> Turns:
    """Whether the roles of this process share its device at the same time, or one after the other."""
    taken = args.offload_roles and count_models(roles, syncs, args) > 1
    if taken and pick_device(args.device).type == "cpu":
        logger.warning("--offload-roles moves weights from CPU memory to CPU memory here, and saves none without a GPU")
    return Turns(taken)


def _reference(
    syncs: Sequence[DataSync], args: Args, workers: Mapping[str, RoleWorker], turns: Turns
) -> RoleWorker | None:
    if not uses_reference([worker.role for worker in workers.values()], syncs, args):
        return None
    if args.ref_load is None:
        raise ConfigError("the loss reads ref_log_probs: name the frozen reference with --ref-load")
    policy = next(iter(workers.values()))
    role = ModelRole("reference", type(policy.specialization), trainable=False)
    return turns.admit(policy.load(role, policy.specialization, args.ref_load, DTYPES[args.dtype], args))


def _plugin_channels(
    config: TrainingConfig, args: Args, workers: Mapping[str, RoleWorker], turns: Turns
) -> list[SyncChannel]:
    """The channels of all plugins, but for those whose roles all live in another process."""
    away = [role.name for role in active_roles(config, args) if role.name not in workers]
    if not away:
        roles = RolesHere("", workers, away, turns)
        answers = plugin_host().hook.build_syncs(config=config, args=args, roles=roles)
        return [channel for channels in answers if channels for channel in channels]
    found: list[SyncChannel] = []
    for implementation in plugin_host().hook.build_syncs.get_hookimpls():
        here = RolesHere(implementation.plugin_name, workers, away, turns)
        wanted = {"config": config, "args": args, "roles": here}
        try:
            channels: Any = implementation.function(*(wanted[name] for name in implementation.argnames))
        except RoleElsewhereError:
            continue
        found += channels or ()
    return found


class RoleElsewhereError(KeyError):
    """A plugin asks for a role of another process before it asks for any of this one."""


class RolesHere(Mapping[str, RoleWorker]):
    """The roles of this process, as a plugin that makes channels sees them.

    Args:
        plugin: Its name.
        here: The roles.
        away: Names of those of other processes.
        turns: Gives all of these the device as soon as the plugin asks for one.
    """

    def __init__(self, plugin: str, here: Mapping[str, RoleWorker], away: Collection[str], turns: Turns) -> None:
        self._plugin, self._here, self._away, self._turns = plugin, here, away, turns
        self._used: list[str] = []

    def __getitem__(self, name: str) -> RoleWorker:
        """The role.

        Raises:
            RecipeError: It is in another process, and one of this process was asked for too.
            RoleElsewhereError: It is in another process.
        """
        if name not in self._away:
            self._used.append(name)
            self._turns.give(*self._here.values())
            return self._here[name]
        if not self._used:
            raise RoleElsewhereError(name)
        raise RecipeError(
            f"plugin {self._plugin}: its channel needs roles {self._used[0]!r} and {name!r}, which are in different "
            f"processes; let them share a pool: ModelRole({name!r}, ..., pool={self._used[0]!r})"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._here or name in self._away

    def __iter__(self) -> Iterator[str]:
        return iter((*self._here, *self._away))

    def __len__(self) -> int:
        return len(self._here) + len(self._away)
