"""Loads the roles of a recipe into this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from stacx_core.backends.model import DTYPES, load_model, pick_device, recompute_activations
from stacx_core.config import DataSync, ModelRole, TrainingConfig, resolve_object
from stacx_core.errors import ConfigError
from stacx_core.hookspecs import SyncChannel
from stacx_core.knobs import Args
from stacx_core.plugins import plugin_host
from stacx_core.specialization.base import Specialization
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.models import active_roles, uses_reference
from stacx_core.trainer.syncs import LocalChannel, active_syncs
from stacx_core.trainer.worker import RoleWorker


def local_learner(config: TrainingConfig, args: Args, checkpoint: Path | None, num_rollout: int) -> LocalLearner:
    """All roles of the run in this process.

    Args:
        config: The recipe.
        args: Completed by :func:`stacx_core.trainer.plan.complete`.
        checkpoint: Where to go on from.
        num_rollout: Rollouts of the whole run.

    Raises:
        ConfigError, ModelError: A model is missing or cannot be loaded.
    """
    syncs = active_syncs(config, args)
    workers = {role.name: _worker(role, role_args(role, args), checkpoint) for role in active_roles(config, args)}
    reference = _reference(syncs, args, workers)
    channels = [*(LocalChannel(config.name, sync) for sync in syncs), *_plugin_channels(config, args, workers)]
    return LocalLearner(config, args, workers, reference, syncs, channels, num_rollout)


def role_args(role: ModelRole, args: Args) -> Args:
    """The arguments as the role sees them: each override that is set stands in for its host knob."""
    own = {knob: args.get(name) for knob, name in role.overrides.items()}
    return args.replace(f"role {role.name}", **{knob: value for knob, value in own.items() if value is not None})


def _worker(role: ModelRole, args: Args, checkpoint: Path | None) -> RoleWorker:
    """The worker of a role, going on from a checkpoint where there is one."""
    specialization = resolve_object(role.specialization_cls)(args)
    source = args.get(role.load_arg or "hf_checkpoint", args.hf_checkpoint)
    if checkpoint and (role.trainable or role.stateful):
        source = str(checkpoint / role.name)
    # Weights that move by small steps are kept in fp32, in which the steps are not rounded away.
    dtype = DTYPES["fp32" if role.stateful else args.dtype]
    worker = _loaded(role, specialization, source, dtype, args)
    if checkpoint:
        worker.load_optimizer(checkpoint)
    return worker


def _loaded(
    role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
) -> RoleWorker:
    """A worker with the weights of a checkpoint."""
    if args.backend == "megatron":
        from stacx_core.trainer.megatron_worker import megatron_worker  # Megatron-core is an extra.

        return megatron_worker(role, specialization, checkpoint, dtype, args)
    model = load_model(checkpoint, dtype, pick_device(args.device), role.head)
    if args.gradient_checkpointing and role.trainable:
        recompute_activations(model)
    return RoleWorker(role, model, specialization, args, plugin_host().hook)


def _reference(syncs: Sequence[DataSync], args: Args, workers: Mapping[str, RoleWorker]) -> RoleWorker | None:
    if not uses_reference([worker.role for worker in workers.values()], syncs, args):
        return None
    if args.ref_load is None:
        raise ConfigError("the loss reads ref_log_probs: name the frozen reference with --ref-load")
    policy = next(iter(workers.values()))
    role = ModelRole("reference", type(policy.specialization), trainable=False)
    return _loaded(role, policy.specialization, args.ref_load, DTYPES[args.dtype], args)


def _plugin_channels(config: TrainingConfig, args: Args, workers: Mapping[str, RoleWorker]) -> list[SyncChannel]:
    answers = plugin_host().hook.build_syncs(config=config, args=args, roles=workers)
    return [channel for channels in answers if channels for channel in channels]
