"""Every installed loss on an output that two processes share gives what it gives on one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.data.batch import Batch
from stacx_core.plugins import plugin_host
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.specialization import Specialization
from stacx_core.testing.rows import VOCABULARY
from stacx_core.testing.subject import Outcome, Probe, Subject, trained_subjects
from stacx_core.testing.trial import require_same
from stacx_core.testing.variants import default_variant, variants

TOLERANCE = 1e-9
PADDING = 2
LAYOUTS = {"TP": {"tensor": 2}, "CP": {"context": 2}}
Step = tuple[Subject, Batch, Mapping[int, Tensor]]
"""A role under some arguments, its prepared batch, and the model's output of each sample."""
TOLD = ("teacher_topk_ids", "teacher_topk_log_probs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests every installed recipe; the processes, which load this module too, need none."""
    if "config" in metafunc.fixturenames:
        plugin_host()
        configs = [config for config in TRAINING_CONFIGS.values() if "tensor_parallel" in config.supports]
        metafunc.parametrize("config", configs, ids=[config.name for config in configs])


class Sharding(Probe):
    """Hands the losses this process's part of the output."""

    def __init__(self, place: Any, scalar: bool) -> None:
        super().__init__()
        self.place, self.scalar = place, scalar

    def compute_loss(self, **inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        lengths = inputs["batch"]["total_lengths"]
        part = self.place.shard(inputs["model_output"], lengths, 0 if self.scalar else PADDING)
        return super().compute_loss(**{**inputs, "model_output": part})


def shared_step(place: Any, steps: Sequence[Step]) -> list[Outcome]:
    """Each step's loss and metrics as this process has them, and its part of the gradients."""
    outcomes = []
    for subject, batch, outputs in steps:
        outcome = subject.step(batch, outputs, probe=Sharding(place, subject.role.head == "scalar"))
        outcomes.append(replace(outcome, returned=()))
    return outcomes


def test_loss_metrics_and_gradient(two: Any, config: TrainingConfig) -> None:
    steps, expected = list[Step](), list[Outcome]()
    for variant in variants(config):
        for subject in trained_subjects(config, variant.name, variant.args):
            rows = subject.rows()
            steps.append((subject, subject.prepare(subject.batch(rows)), subject.outputs(rows)))
            expected.append(subject.step(*steps[-1][1:]))
    for name, layout in LAYOUTS.items():
        chosen = [i for i, (subject, _, _) in enumerate(steps) if name == "CP" or subject.role.head != "scalar"]
        first, second = two.run(shared_step, [steps[i] for i in chosen], **layout)
        for i, one, other in zip(chosen, first, second, strict=True):
            gradients = {index: one.gradients[index] + other.gradients[index] for index in one.gradients}
            for outcome in (one, other):
                together = replace(outcome, gradients=gradients)
                change = f"with {name} 2 under {steps[i][0].variant}"
                require_same(together, expected[i], change, tolerance=TOLERANCE)


def told(place: Any, specialization: Specialization, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return specialization.tell(place.shard(output, [len(output)], PADDING), targets, TOLD)


def test_what_frozen_roles_tell(two: Any) -> None:
    plugin_host()
    torch.manual_seed(0)
    output, targets = torch.randn(7, VOCABULARY), torch.arange(7)
    for config in TRAINING_CONFIGS.values():
        for role in (role for role in config.roles if not role.trainable and role.head == "lm"):
            specialization = resolve_object(role.specialization_cls)(default_variant(config).args)
            expected = specialization.tell(output, targets, TOLD)
            for layout in LAYOUTS.values():
                for found in two.run(told, specialization, output, targets, **layout):
                    torch.testing.assert_close(found, expected)
