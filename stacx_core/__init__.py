"""Stacx: a post-training engine whose algorithms are plugins. These names are the public authoring API.

Every name is imported on first use, so that `import stacx_core` costs nothing and torch is loaded only by
code that touches tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stacx_core.config import DataSync, ModelRole, TrainingConfig
    from stacx_core.data.batch import Batch
    from stacx_core.data.prompts import PromptRow, PromptStream, parse_prompt
    from stacx_core.data.rendering import render_prompt, sft_sample
    from stacx_core.data.sample import Message, Sample, SampleStatus
    from stacx_core.data.sources import read_records
    from stacx_core.errors import (
        BatchError,
        CheckpointError,
        ConfigError,
        DataError,
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
    from stacx_core.objectives import sum_of_sample_mean
    from stacx_core.recipes import TRAINING_CONFIGS, infer_algorithm, recipe
    from stacx_core.rollout.engine import RolloutEngine, SamplingParams
    from stacx_core.rollout.protocol import Rollout
    from stacx_core.rollout.sampled import SampledRollout, sequence_limit
    from stacx_core.rollout.scored import TeacherScoredRollout
    from stacx_core.rollout.teachers.protocol import Teacher, TeacherAction, TeacherScore, TeacherTurn
    from stacx_core.specialization import CausalDecoderSpecialization, ScalarHeadSpecialization, Specialization

_HOME = {
    "stacx_core.config": ("DataSync", "ModelRole", "TrainingConfig"),
    "stacx_core.data.batch": ("Batch",),
    "stacx_core.data.prompts": ("PromptRow", "PromptStream", "parse_prompt"),
    "stacx_core.data.rendering": ("render_prompt", "sft_sample"),
    "stacx_core.data.sample": ("Message", "Sample", "SampleStatus"),
    "stacx_core.data.sources": ("read_records",),
    "stacx_core.errors": (
        "BatchError",
        "CheckpointError",
        "ConfigError",
        "DataError",
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
    "stacx_core.objectives": ("sum_of_sample_mean",),
    "stacx_core.recipes": ("TRAINING_CONFIGS", "infer_algorithm", "recipe"),
    "stacx_core.rollout.engine": ("RolloutEngine", "SamplingParams"),
    "stacx_core.rollout.protocol": ("Rollout",),
    "stacx_core.rollout.sampled": ("SampledRollout", "sequence_limit"),
    "stacx_core.rollout.scored": ("TeacherScoredRollout",),
    "stacx_core.rollout.teachers.protocol": ("Teacher", "TeacherAction", "TeacherScore", "TeacherTurn"),
    "stacx_core.specialization": ("CausalDecoderSpecialization", "ScalarHeadSpecialization", "Specialization"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "API_VERSION",
    "TRAINING_CONFIGS",
    "Args",
    "Batch",
    "BatchError",
    "CausalDecoderSpecialization",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DataSync",
    "ExitCode",
    "Knob",
    "Message",
    "ModelError",
    "ModelRole",
    "NonFiniteError",
    "PluginError",
    "PromptRow",
    "PromptStream",
    "RecipeError",
    "RewardError",
    "RoleHandle",
    "Rollout",
    "RolloutEngine",
    "Sample",
    "SampleStatus",
    "SampledRollout",
    "SamplingParams",
    "ScalarHeadSpecialization",
    "Specialization",
    "StacxError",
    "SyncChannel",
    "Teacher",
    "TeacherAction",
    "TeacherError",
    "TeacherScore",
    "TeacherScoredRollout",
    "TeacherTurn",
    "TrainingConfig",
    "UnknownRecipeError",
    "hookimpl",
    "infer_algorithm",
    "nearest",
    "parse_prompt",
    "read_records",
    "recipe",
    "render_prompt",
    "sequence_limit",
    "sft_sample",
    "sum_of_sample_mean",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
