"""Puts a run together from a recipe's role graph."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from stacx_core.backends.model import load_tokenizer, stop_ids
from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.errors import CheckpointError, ConfigError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.episode_rollout import EpisodeEvaluation, sampled_or_played
from stacx_core.rollout.evaluation import Evaluation, PromptEvaluation
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.protocol import RollIn
from stacx_core.rollout.sampled import SampledRollout
from stacx_core.tracking.tracker import Tracker
from stacx_core.trainer.checkpoints import find_checkpoint, remove_unfinished, set_aside_newer
from stacx_core.trainer.interrupts import broken_off
from stacx_core.trainer.learner import Learner, policy_role
from stacx_core.trainer.models import (
    active_roles,
    check_vocabularies,
    other_models,
    scoring_models,
    shortest_context,
)
from stacx_core.trainer.roles import local_learner
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
    tokenizer, roll_in, evaluation, num_rollout = load_data(config, args)
    start = json.loads((checkpoint / STATE_FILE).read_text()) if checkpoint else None
    if start:
        assert checkpoint is not None
        _check_same_kind(checkpoint, start, config, args)
        roll_in.restore(start["roll_in"])
    with ExitStack() as undo:
        learner = _learner(config, args, checkpoint, num_rollout)
        undo.callback(learner.close)
        parts = Parts(
            args=args,
            tokenizer=tokenizer,
            policy=policy_role(active_roles(config, args)),
            learner=learner,
            engine=_engine(args, learner.policy_model(), tokenizer),
            roll_in=roll_in,
            evaluation=evaluation,
            num_rollout=num_rollout,
        )
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        if checkpoint:
            set_aside_newer(Path(args.output_dir) / "checkpoints", checkpoint)
        trainer = StacxTrainer(parts, Tracker(args, num_rollout, start["rollout"] if start else 0), start)
        undo.pop_all()
        return trainer


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


def load_data(config: TrainingConfig, args: Args) -> tuple[PreTrainedTokenizerBase, RollIn, Evaluation | None, int]:
    """Tokenizer, roll-in protocol, evaluation and the number of rollouts: all that can fail without a model."""
    tokenizer = load_tokenizer(args.hf_checkpoint)
    others = other_models(config, args)
    scorers = scoring_models(args.eval_rm_type or args.rm_type, args)
    check_vocabularies(args.hf_checkpoint, [*others, *scorers])
    context = shortest_context(args.hf_checkpoint, others)
    chosen = resolve_object(config.rollout)
    make = sampled_or_played if chosen is SampledRollout else chosen
    roll_in: RollIn = make(args, tokenizer, context)
    evaluation = _evaluation(args, tokenizer, shortest_context(args.hf_checkpoint, scorers))
    epochs = -(-args.num_epoch * roll_in.num_prompts // args.rollout_batch_size) if args.num_epoch else 0
    num_rollout = args.num_rollout or epochs
    _check_all_are_trained(config, args, num_rollout)
    return tokenizer, roll_in, evaluation, num_rollout


def _check_all_are_trained(config: TrainingConfig, args: Args, num_rollout: int) -> None:
    """Refuse to keep a role frozen for the whole run."""
    for role in config.roles:
        if role.frozen_for is not None and args.get(role.frozen_for, 0) >= num_rollout:
            flag = "--" + role.frozen_for.replace("_", "-")
            raise ConfigError(
                f"{flag} {args.get(role.frozen_for)} leaves none of {num_rollout} rollouts to train role "
                f"{role.name!r}; lower it, or raise --num-rollout"
            )


def _evaluation(args: Args, tokenizer: PreTrainedTokenizerBase, context: int | None) -> Evaluation | None:
    if args.eval_tasks is not None:
        return EpisodeEvaluation(args, tokenizer, context)
    if args.eval_prompt_data is None:
        return None
    if args.rm_type is None and args.eval_rm_type is None:
        raise ConfigError("--eval-prompt-data needs --rm-type or --eval-rm-type to score the answers")
    return PromptEvaluation(args, tokenizer, context)


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


def _engine(args: Args, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> RolloutEngine:
    if args.rollout_engine == "local":
        return LocalEngine(model, stop_ids(model, tokenizer), args.rollout_max_running)
    from stacx_core.rollout.sglang.policy import policy_servers  # Its HTTP client is of no use to other runs.

    return policy_servers(args, model, tokenizer)
