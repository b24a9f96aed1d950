"""One step of a recipe by one process and by several: the same loss, the same metrics, the same weights.

Tiny models are made at random, one update of the whole recipe is run by the torch backend, forward passes, syncs and
stages included, and then by Megatron-core in each layout, by real processes that talk over gloo.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.megatron_knobs import check_megatron
from stacx_core.testing.ranks import RankError, Ranks
from stacx_core.testing.results import Problem
from stacx_core.testing.rows import VOCABULARY
from stacx_core.testing.subject import trained_subjects
from stacx_core.testing.variants import Variant
from stacx_core.trainer.forwards import REFERENCE_KEY, own_key
from stacx_core.trainer.syncs import active_syncs

TOLERANCE = 1e-5
"""Largest difference of a metric, absolute below 1 and relative above, and of a weight, relative to its norm."""

LAYOUTS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "TP=2": (2, {"tensor_model_parallel_size": 2}),
    "TP=2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP=2": (2, {"pipeline_model_parallel_size": 2}),
    "DP=2": (2, {}),
    "CP=2": (2, {"context_parallel_size": 2}),
    "DP=2 sharded optimizer": (2, {"use_distributed_optimizer": True}),
    "TP=2 DP=2": (4, {"tensor_model_parallel_size": 2}),
    "PP=2 CP=2": (4, {"pipeline_model_parallel_size": 2, "context_parallel_size": 2}),
}
"""Name -> processes, and the knobs of the layout."""


@dataclass(frozen=True)
class Update:
    """What one update made of a recipe's roles."""

    metrics: dict[str, float]
    weights: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class UpdateJob:
    """One update of a recipe.

    Args:
        config: The recipe.
        args: Completed, with the models' folders and the layout in place.
        batch: The rollout.
    """

    config: TrainingConfig
    args: Args
    batch: Batch

    def run(self, rank: int = 0, ranks: int = 1) -> Update | None:
        """The update; ``None`` on other ranks than the first."""
        from stacx_core.trainer.roles import local_learner

        torch.manual_seed(0)
        if self.args.backend == "megatron":
            _initialize(self.args, ranks)
        learner = local_learner(self.config, self.args, None, num_rollout=1)
        metrics = learner.update(copy.deepcopy(self.batch), completed=0)
        weights = {name: dict(worker.weights()) for name, worker in learner.workers.items() if worker.optimizer}
        return Update(metrics, weights) if rank == 0 else None


def _initialize(args: Args, ranks: int) -> None:
    """Megatron's groups of this layout, in the place of the last one's."""
    from stacx_core.backends.megatron.layout import Layout, initialize

    initialize(Layout.of(args, ranks), args.seed)
