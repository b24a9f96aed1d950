"""The two recipes: their shape, and what they do not support."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import torch
from torch import nn

from stacx_core import TRAINING_CONFIGS, Args
from stacx_plugin_distill import knobs, objectives
from stacx_plugin_distill.recipes import build_syncs
from stacx_plugin_distill.rollout import in_front
from stacx_plugin_distill.teacher import MovingAverage


def test_the_recipes_are_registered_and_pickle() -> None:
    for name in ("opd", "self_distill"):
        config = TRAINING_CONFIGS[name]
        assert pickle.loads(pickle.dumps(config)) == config
        assert config.family == "distill"


def test_the_modes_are_those_of_the_objectives() -> None:
    """Written down twice, so that listing recipes needs no torch."""
    assert knobs.SAMPLED_MODES == objectives.SAMPLED_MODES


def test_importing_the_recipes_imports_no_torch() -> None:
    program = "import sys, stacx_plugin_distill.recipes; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


class Role:
    """A model with two weights."""

    def __init__(self, *values: float, dtype: torch.dtype = torch.float32) -> None:
        self.model: nn.Module = nn.Linear(2, 1, bias=False)
        self.model.weight = nn.Parameter(torch.tensor([values], dtype=dtype))

    def score(self, batch: dict) -> list[torch.Tensor]:
        return []

    @property
    def values(self) -> list[float]:
        weights: list[float] = self.model.weight[0].tolist()
        return weights


def test_two_moves_of_three_rollouts() -> None:
    """0.5 * (1, 2) + 0.5 * (3, 6) = (2, 4) after the second and no other; the policy stays."""
    teacher, policy = Role(1.0, 2.0), Role(3.0, 6.0, dtype=torch.bfloat16)
    average = MovingAverage(teacher, policy, decay=0.5, interval=2)
    seen = []
    for completed in (1, 2, 3):
        average.after_update(completed)
        seen.append(teacher.values)
    assert seen == [[1.0, 2.0], [2.0, 4.0], [2.0, 4.0]]
    assert policy.values == [3.0, 6.0]


def test_the_average_belongs_to_self_distill_with_a_decay_below_one() -> None:
    roles = {"teacher": Role(1.0, 2.0), "policy": Role(3.0, 6.0)}
    own, other = TRAINING_CONFIGS["self_distill"], TRAINING_CONFIGS["opd"]
    assert len(build_syncs(own, Args.of(ema_decay=0.99, ema_interval=1), roles)) == 1
    assert build_syncs(own, Args.of(ema_decay=1.0, ema_interval=1), roles) == []
    assert build_syncs(other, Args.of(), roles) == []


def test_the_privileged_text_stands_in_front() -> None:
    assert in_front("Hint.", "Question?") == "Hint.\n\nQuestion?"
    messages = [{"role": "user", "content": "Question?"}, {"role": "assistant", "content": "Yes."}]
    assert in_front("Hint.", messages) == [{"role": "user", "content": "Hint.\n\nQuestion?"}, messages[1]]
    assert messages[0]["content"] == "Question?"
