"""A run that is saved in one layout of processes goes on in another as if it had not been stopped."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from stacx_core.config import TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.knobs import Args
from stacx_core.plugins import plugin_host
from stacx_core.testing.parallel import LAYOUTS, TOLERANCE, _initialize, _job, make_models
from stacx_core.testing.variants import variants

pytest.importorskip("megatron.core")

SAVED_AFTER, STEPS = 3, 5


@dataclass(frozen=True)
class Step:
    """What a step reports, and what it makes of the weights."""

    metrics: dict[str, float]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class TrainJob:
    """Steps of a recipe on the same rollout.

    Args:
        resume: Checkpoint to go on from; else the run begins anew.
        save: Checkpoint to write when so many steps are done, or at once after resuming.
    """

    config: TrainingConfig
    args: Args
    batch: Batch
    resume: Path | None = None
    save: Path | None = None

    def run(self, rank: int, ranks: int) -> list[Step]:
        """What each step reports."""
        from stacx_core.trainer.roles import local_learner

        _initialize(self.args, ranks)
        learner = local_learner(self.config, self.args, self.resume, STEPS)
        if self.resume and self.save:
            learner.save(self.save)
        found = []
        for completed in range(SAVED_AFTER if self.resume else 0, STEPS):
            metrics = learner.update(copy.deepcopy(self.batch), completed)
            weights = {
                f"{name}.{weight}": tensor.clone()
                for name, worker in learner.workers.items()
                for weight, tensor in worker.weights()
            }
            found.append(Step(metrics, weights))
            if completed + 1 == SAVED_AFTER and self.save and not self.resume:
                learner.save(self.save)
        learner.finish_save()
        return found


def job(recipe: str, models: Mapping[str, str], layout: str, **given: Any) -> TrainJob:
    config = plugin_host().find(recipe).config
    made = _job(config, next(iter(variants(config))), models)
    args = made.args.replace("test", backend="megatron", **LAYOUTS[layout][1])
    return TrainJob(config, args, made.batch, **given)


def assert_same(expected: list[Step], found: list[Step]) -> None:
    assert len(expected) == len(found)
    for before, after in zip(expected, found, strict=True):
        assert before.metrics.keys() == after.metrics.keys()
        for name, value in before.metrics.items():
            assert math.isclose(after.metrics[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE), name
        for name, tensor in before.weights.items():
            assert float((after.weights[name] - tensor).norm() / tensor.norm()) <= TOLERANCE, name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_models(tmp_path_factory.mktemp("models"))


@dataclass(frozen=True)
class Saved:
    """An unbroken run, and the checkpoint of its middle."""

    steps: list[Step]
    folder: Path


Runs = dict[tuple[str, str], Saved]
"""Recipe and layout -> its run."""

RUNS = (
    ("DP=2 sharded optimizer", "sft", {}),
    ("DP=2 sharded optimizer", "bf16", {"dtype": "bf16", "async_save": True}),
    ("DP=2", "sft", {}),
    ("PP=2", "sft", {"async_save": True}),
    ("TP=2", "ppo", {}),
    ("TP=2", "bf16", {"dtype": "bf16"}),
)
"""Layout, name and knobs of the runs that are saved."""

RESUMED = (
    ("ppo", "TP=2", "DP=2"),
    ("ppo", "TP=2", "DP=2 sharded optimizer"),
    ("sft", "PP=2", "CP=2"),
    ("sft", "DP=2 sharded optimizer", "TP=2"),
    ("sft", "DP=2 sharded optimizer", "DP=2 sharded optimizer"),
)
"""Run, its layout and the one in which it goes on."""
