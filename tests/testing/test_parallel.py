"""Faults that one process does not show: `stacx check --parallel` names layout, metric or weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.modality import Modality
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.testing.parallel import Update, check_parallel, difference
from stacx_core.testing.results import CheckResult

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

REFERENCE = "package.module:name"
POINTS = TrainingConfig(
    "points",
    (ModelRole("line", REFERENCE),),
    modality=Modality("points", REFERENCE, REFERENCE, REFERENCE, REFERENCE),
)

RAW = """
def per_token(self, log_probs, batch):
    entropy = torch.distributions.Categorical(logits=self.output[: len(log_probs)]).entropy()
    return super().per_token(log_probs, batch) - 0.1 * entropy

def compute_loss(self, model_output, batch, reducer):
    self.output = model_output
    return super().compute_loss(model_output, batch, reducer)
"""

REMEMBERS = """
seen = 0

def advantages(self, log_probs, batch):
    self.seen += 1
    return super().advantages(log_probs, batch) / self.seen
"""


@pytest.fixture(scope="module")
def results(plant: Callable[..., TrainingConfig]) -> dict[str, dict[str, CheckResult]]:
    """Recipe -> layout -> result, all by the same processes."""
    configs = [
        plant("sound_loss"),
        plant("raw_logits", loss=RAW),
        plant("remembers", loss=REMEMBERS),
        plant("one_kind", supports=("data_parallel",)),
        POINTS,
    ]
    layouts = ("TP=2", "DP=2")
    found = check_parallel(configs, layouts)
    return {
        config.name: dict(zip(layouts, of_config, strict=True))
        for config, of_config in zip(configs, found, strict=True)
    }


def test_a_sound_loss_passes(results: dict[str, dict[str, CheckResult]]) -> None:
    """Nothing is said of it."""
    assert {result.status for result in results["sound_loss"].values()} == {"pass"}


def test_a_recipe_of_another_modality_is_left_out_by_name(results: dict[str, dict[str, CheckResult]]) -> None:
    for result in results["points"].values():
        assert result.status == "not applicable"
        assert "recipe 'points' is of modality 'points'" in result.reason
    with pytest.raises(ConfigError, match="--parallel does not apply: recipe 'points' is of modality 'points'"):
        check_parallel([POINTS])


def test_raw_logits_are_refused_where_they_are_a_part(results: dict[str, dict[str, CheckResult]]) -> None:
    """The loss is told which functions to use, and is right where it has all logits."""
    found = results["raw_logits"]
    assert found["TP=2"].status == "fail"
    assert "model_output is a ShardedOutput" in found["TP=2"].reason
    assert "token_log_probs" in found["TP=2"].reason
    assert found["DP=2"].status == "pass"


def test_a_loss_that_remembers_micro_batches_is_found(results: dict[str, dict[str, CheckResult]]) -> None:
    """Each of two processes sees half of them."""
    assert results["remembers"]["DP=2"].status == "fail"
    assert "in one process" in results["remembers"]["DP=2"].reason


def test_what_a_recipe_does_not_support_is_named(results: dict[str, dict[str, CheckResult]]) -> None:
    """The layout does not apply, and the reason names recipe and property."""
    found = results["one_kind"]["TP=2"]
    assert found.status == "not applicable"
    assert found.reason == "recipe 'one_kind' does not support tensor_parallel; it supports data_parallel"
    assert results["one_kind"]["DP=2"].status == "pass"


def test_recipes_support_every_kind_unless_they_say_otherwise() -> None:
    """The host's own does."""
    assert TRAINING_CONFIGS["sft"].supports == (
        "data_parallel",
        "tensor_parallel",
        "context_parallel",
        "pipeline_parallel",
    )


def test_a_difference_is_told_in_words() -> None:
    """Metrics by name, to 1e-5; weights by their norm."""
    one = Update({"loss": 1.0}, {"policy": {"w": torch.tensor([3.0, 4.0])}})
    assert difference(one, one) == ""
    assert difference(one, replace(one, metrics={"loss": 1.0 + 5e-6})) == ""
    assert difference(one, replace(one, metrics={"loss": 1.1})) == "loss is 1.1, in one process 1"
    assert difference(one, replace(one, metrics={})) == "one process reports other metrics than these: loss"
    moved = replace(one, weights={"policy": {"w": torch.tensor([3.0, 4.001])}})
    assert difference(one, moved) == "after the step, w of role 'policy' differs by 0.0002 of its norm"
