"""Puts a run together from a recipe's role graph."""

from __future__ import annotations

import json
import os
import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.errors import CheckpointError, ConfigError
from stacx_core.knobs import Args
from stacx_core.tracking.tracker import Tracker
from stacx_core.trainer.checkpoints import find_checkpoint, remove_unfinished, set_aside_newer
from stacx_core.trainer.interrupts import Interrupts, broken_off
from stacx_core.trainer.learner import Learner, is_trained
from stacx_core.trainer.models import active_roles
from stacx_core.trainer.roles import local_learner
from stacx_core.trainer.setup import RunSetup
from stacx_core.trainer.trainer import STATE_FILE, Parts, StacxTrainer


@broken_off()
def create_trainer(config: TrainingConfig, args: Args) -> StacxTrainer:
    """Load data, models and hooks of a run, cheapest and likeliest to fail first.

    Args:
        config: The recipe.
        args: Completed by :func:`stacx_core.trainer.plan.complete`.

    Raises:
        ConfigError, DataError, ModelError, CheckpointError: Before any model is loaded, except for a model that cannot
            be loaded itself.
    """
    torch.set_num_threads(args.num_threads or free_cores())
    disable_progress_bar()
    set_verbosity_error()
    checkpoint = resume_point(args)
    start = json.loads((checkpoint / STATE_FILE).read_text()) if checkpoint else None
    if checkpoint and start:
        _check_same_kind(checkpoint, start, config, args)
    setup, num_rollout = load_data(config, args)
    if start:
        setup.roll_in.restore(start["roll_in"])
    with _ending_processes(args), ExitStack() as undo:
        learner = _learner(config, args, checkpoint, num_rollout)
        undo.callback(learner.close)
        parts = Parts(config, args, setup, learner, setup.engine(learner.policy_model()), num_rollout)
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        if checkpoint:
            set_aside_newer(Path(args.output_dir) / "checkpoints", checkpoint)
        trainer = StacxTrainer(parts, Tracker(args, num_rollout, start["rollout"] if start else 0), start)
        undo.pop_all()
        return trainer


def _ending_processes(args: Args) -> AbstractContextManager[None]:
    """While processes are started, Ctrl-C and SIGTERM end them, too; the command's own handler ends at once."""
    if args.role_workers == "ray" and threading.current_thread() is threading.main_thread():
        return Interrupts().installed()
    return nullcontext()


def _learner(config: TrainingConfig, args: Args, checkpoint: Path | None, num_rollout: int) -> Learner:
    if args.role_workers != "ray":
        return local_learner(config, args, checkpoint, num_rollout)
    from stacx_core.trainer.ray.learner import ray_learner  # Ray is an extra.

    return ray_learner(config, args, checkpoint, num_rollout)


def _check_same_kind(checkpoint: Path, start: dict[str, Any], config: TrainingConfig, args: Args) -> None:
    """Refuse to go on from a checkpoint that this run could not have written.

    Raises:
        CheckpointError: It is of another algorithm, or its optimizer's state of another backend.
    """
    if start["algorithm"] != args.algorithm:
        raise CheckpointError(f"{checkpoint} is of algorithm {start['algorithm']!r}, this run is {args.algorithm!r}")
    backend = start.get("backend", "torch")
    if backend != args.backend:
        models = " ".join(
            f"--{(role.load_arg or 'hf_checkpoint').replace('_', '-')} {checkpoint / role.name}"
            for role in config.roles
            if role.trainable and (checkpoint / role.name).is_dir()
        )
        raise CheckpointError(
            f"{checkpoint} was written by --backend {backend}, whose optimizer's state --backend {args.backend} "
            "cannot take up",
            f"go on with --backend {backend}, or begin a new run from its weights: {models}",
        )


def load_data(config: TrainingConfig, args: Args) -> tuple[RunSetup, int]:
    """What the run has beside its roles, and the number of rollouts: all that can fail without a model."""
    setup: RunSetup = resolve_object(config.modality.setup)(config, args)
    epochs = -(-args.num_epoch * setup.roll_in.num_prompts // args.rollout_batch_size) if args.num_epoch else 0
    num_rollout = args.num_rollout or epochs
    _check_all_are_trained(config, args, num_rollout)
    return setup, num_rollout


def _check_all_are_trained(config: TrainingConfig, args: Args, num_rollout: int) -> None:
    """Refuse to keep a role frozen for the whole run."""
    for role in active_roles(config, args):
        if any(is_trained(role, args, rollout) for rollout in range(num_rollout)) or not role.trainable:
            continue
        counts = [name for name in (role.frozen_for, role.trained_every) if name is not None]
        flags = " and ".join(f"--{name.replace('_', '-')} {args.get(name)}" for name in counts)
        raise ConfigError(
            f"{flags} leaves none of {num_rollout} rollouts to train role {role.name!r}; lower it, or raise "
            "--num-rollout"
        )


def resume_point(args: Args) -> Path | None:
    """The checkpoint to go on from.

    Raises:
        ConfigError: The output folder holds a run and ``--resume`` was not given.
        CheckpointError: The checkpoint asked for is damaged or missing.
    """
    output = Path(args.output_dir)
    if args.resume == "never":
        if (output / "metrics.jsonl").exists() and (output / "metrics.jsonl").stat().st_size:
            raise ConfigError(f"{output} holds a run already: add --resume to go on, or choose another --output-dir")
        return None
    folder = output / "checkpoints"
    remove_unfinished(folder)
    return find_checkpoint(folder, args.resume)


def free_cores() -> int:
    """Half of the logical CPUs this process may use, at least one: the physical cores of most machines.

    ``OMP_NUM_THREADS`` overrides it, so that processes sharing a machine can be told their share.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told):
        return min(int(told), os.cpu_count() or 1)
    return max(len(os.sched_getaffinity(0)) // 2, 1)
