"""Stacx: a post-training engine whose algorithms are plugins. These names are the public authoring API.

Every name is imported on first use, so that `import stacx_core` costs nothing and torch is loaded only by
code that touches tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stacx_core.backends.model import pick_device
    from stacx_core.batch_keys import BatchKey
    from stacx_core.config import DataSync, ModelRole, TrainingConfig, resolve_object
    from stacx_core.data.batch import TEACHER_TOKEN, Batch, select
    from stacx_core.data.packing import micro_batches
    from stacx_core.data.prompts import PromptRow, PromptStream, parse_prompt
    from stacx_core.data.rendering import render_prompt, sft_sample
    from stacx_core.data.sample import STUDENT, TEACHER, Message, Sample, SampleStatus
    from stacx_core.data.sources import read_records
    from stacx_core.errors import (
        BatchError,
        CheckpointError,
        ConfigError,
        DataError,
        EpisodeError,
        ExitCode,
        ModelError,
        NonFiniteError,
        PluginError,
        RecipeError,
        RewardError,
        StacxError,
        TeacherError,
        UnknownRecipeError,
        nearest,
    )
    from stacx_core.hookspecs import API_VERSION, RoleHandle, SyncChannel, hookimpl
    from stacx_core.knobs import Args, Knob
    from stacx_core.modality import Modality
    from stacx_core.objectives import sum_of_sample_mean
    from stacx_core.recipes import TRAINING_CONFIGS, infer_algorithm, recipe
    from stacx_core.rollout.dataset import DatasetRollout
    from stacx_core.rollout.engine import RolloutEngine, SamplingParams
    from stacx_core.rollout.environment import Environment, Step
    from stacx_core.rollout.environments.loading import load_environment
    from stacx_core.rollout.episode_metrics import episode_metrics
    from stacx_core.rollout.episode_rollout import EpisodeRollout, grouped_samples, sampled_or_played
    from stacx_core.rollout.episode_runner import EpisodeRunner, episode_runner
    from stacx_core.rollout.episodes import Episode, EpisodeTask, Executor, Turn
    from stacx_core.rollout.evaluation import Evaluation
    from stacx_core.rollout.playground import playground
    from stacx_core.rollout.playing import student_only
    from stacx_core.rollout.protocol import RollIn, Rollout
    from stacx_core.rollout.sampled import SampledRollout, sequence_limit
    from stacx_core.rollout.scored import TeacherScoredRollout
    from stacx_core.rollout.tasks import TaskStream, held_out_tasks, training_task
    from stacx_core.rollout.teachers.loading import load_teacher
    from stacx_core.rollout.teachers.protocol import Teacher, TeacherAction, TeacherScore, TeacherTurn
    from stacx_core.seeds import sub_seed
    from stacx_core.specialization import CausalDecoderSpecialization, ScalarHeadSpecialization, Specialization
    from stacx_core.trainer.learner import Learner
    from stacx_core.trainer.setup import RunSetup
    from stacx_core.trainer.worker import RoleWorker

_HOME = {
    "stacx_core.backends.model": ("pick_device",),
    "stacx_core.batch_keys": ("BatchKey",),
    "stacx_core.config": ("DataSync", "ModelRole", "TrainingConfig", "resolve_object"),
    "stacx_core.data.batch": ("TEACHER_TOKEN", "Batch", "select"),
    "stacx_core.data.packing": ("micro_batches",),
    "stacx_core.data.prompts": ("PromptRow", "PromptStream", "parse_prompt"),
    "stacx_core.data.rendering": ("render_prompt", "sft_sample"),
    "stacx_core.data.sample": ("STUDENT", "TEACHER", "Message", "Sample", "SampleStatus"),
    "stacx_core.data.sources": ("read_records",),
    "stacx_core.errors": (
        "BatchError",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "EpisodeError",
        "ExitCode",
        "ModelError",
        "NonFiniteError",
        "PluginError",
        "RecipeError",
        "RewardError",
        "StacxError",
        "TeacherError",
        "UnknownRecipeError",
        "nearest",
    ),
    "stacx_core.hookspecs": ("API_VERSION", "RoleHandle", "SyncChannel", "hookimpl"),
    "stacx_core.knobs": ("Args", "Knob"),
    "stacx_core.modality": ("Modality",),
    "stacx_core.objectives": ("sum_of_sample_mean",),
    "stacx_core.recipes": ("TRAINING_CONFIGS", "infer_algorithm", "recipe"),
    "stacx_core.rollout.dataset": ("DatasetRollout",),
    "stacx_core.rollout.engine": ("RolloutEngine", "SamplingParams"),
    "stacx_core.rollout.environment": ("Environment", "Step"),
    "stacx_core.rollout.environments.loading": ("load_environment",),
    "stacx_core.rollout.episode_metrics": ("episode_metrics",),
    "stacx_core.rollout.episode_rollout": ("EpisodeRollout", "grouped_samples", "sampled_or_played"),
    "stacx_core.rollout.episode_runner": ("EpisodeRunner", "episode_runner"),
    "stacx_core.rollout.episodes": ("Episode", "EpisodeTask", "Executor", "Turn"),
    "stacx_core.rollout.evaluation": ("Evaluation",),
    "stacx_core.rollout.playground": ("playground",),
    "stacx_core.rollout.playing": ("student_only",),
    "stacx_core.rollout.protocol": ("RollIn", "Rollout"),
    "stacx_core.rollout.sampled": ("SampledRollout", "sequence_limit"),
    "stacx_core.rollout.scored": ("TeacherScoredRollout",),
    "stacx_core.rollout.tasks": ("TaskStream", "held_out_tasks", "training_task"),
    "stacx_core.rollout.teachers.loading": ("load_teacher",),
    "stacx_core.rollout.teachers.protocol": ("Teacher", "TeacherAction", "TeacherScore", "TeacherTurn"),
    "stacx_core.seeds": ("sub_seed",),
    "stacx_core.specialization": ("CausalDecoderSpecialization", "ScalarHeadSpecialization", "Specialization"),
    "stacx_core.trainer.learner": ("Learner",),
    "stacx_core.trainer.setup": ("RunSetup",),
    "stacx_core.trainer.worker": ("RoleWorker",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "API_VERSION",
    "STUDENT",
    "TEACHER",
    "TEACHER_TOKEN",
    "TRAINING_CONFIGS",
    "Args",
    "Batch",
    "BatchError",
    "BatchKey",
    "CausalDecoderSpecialization",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DataSync",
    "DatasetRollout",
    "Environment",
    "Episode",
    "EpisodeError",
    "EpisodeRollout",
    "EpisodeRunner",
    "EpisodeTask",
    "Evaluation",
    "Executor",
    "ExitCode",
    "Knob",
    "Learner",
    "Message",
    "Modality",
    "ModelError",
    "ModelRole",
    "NonFiniteError",
    "PluginError",
    "PromptRow",
    "PromptStream",
    "RecipeError",
    "RewardError",
    "RoleHandle",
    "RoleWorker",
    "RollIn",
    "Rollout",
    "RolloutEngine",
    "RunSetup",
    "Sample",
    "SampleStatus",
    "SampledRollout",
    "SamplingParams",
    "ScalarHeadSpecialization",
    "Specialization",
    "StacxError",
    "Step",
    "SyncChannel",
    "TaskStream",
    "Teacher",
    "TeacherAction",
    "TeacherError",
    "TeacherScore",
    "TeacherScoredRollout",
    "TeacherTurn",
    "TrainingConfig",
    "Turn",
    "UnknownRecipeError",
    "episode_metrics",
    "episode_runner",
    "grouped_samples",
    "held_out_tasks",
    "hookimpl",
    "infer_algorithm",
    "load_environment",
    "load_teacher",
    "micro_batches",
    "nearest",
    "parse_prompt",
    "pick_device",
    "playground",
    "read_records",
    "recipe",
    "render_prompt",
    "resolve_object",
    "sampled_or_played",
    "select",
    "sequence_limit",
    "sft_sample",
    "student_only",
    "sub_seed",
    "sum_of_sample_mean",
    "training_task",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
