"""Each check passes a sound recipe and fails one that breaks just its property."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stacx_core import ConfigError, Knob, ModelRole, TrainingConfig
from stacx_core.testing import CHECKS, check_recipe
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import CheckResult

REDUCED_ALONE = """
def compute_loss(self, model_output, batch, reducer):
    from stacx_core import sum_of_sample_mean
    log_probs, _ = self.response_log_probs(model_output, batch)
    per_token = self.per_token(log_probs, batch)
    return sum_of_sample_mean(per_token, batch["response_lengths"], batch["loss_masks"]), {}
"""

LOSSES = {
    "bf16_output": (
        "with bf16 output and",
        """
        def response_log_probs(self, model_output, batch):
            rows = torch.cat([
                torch.arange(end - response - 1, end - 1)
                for end, response in zip(batch["cu_seqlens"][1:].tolist(), batch["response_lengths"])
            ])
            targets = batch["tokens"][0, rows + 1]
            log_probs = model_output[rows].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            return (log_probs.float() if log_probs.dtype == torch.bfloat16 else log_probs) * self.mask(batch), None
        """,
    ),
    "deterministic": (
        "the second time",
        """
        def per_token(self, log_probs, batch):
            return super().per_token(log_probs, batch) * torch.rand(1).item()
        """,
    ),
    "garbage_in_masked_slots": (
        "with nan in masked slots",
        """
        def advantages(self, log_probs, batch):
            return self.flat(batch, "advantages") + 0 * torch.cat(batch["log_probs"]).sum()
        """,
    ),
    "packing": (
        "with packs of up to 9 tokens",
        """
        def per_token(self, log_probs, batch):
            return super().per_token(log_probs, batch) * (2.0 if len(batch["tokens"][0]) > 20 else 1.0)
        """,
    ),
    "siblings": ("with each rollout cut into two samples", REDUCED_ALONE),
    "data_parallel": (
        "after the sums on rank 0 of 2",
        """
        def per_token(self, log_probs, batch):
            import torch.distributed as dist
            ranks = dist.get_world_size() if dist.is_initialized() else 1
            return super().per_token(log_probs, batch) / ranks
        """,
    ),
    "nothing_to_train": (
        "when no token of the micro-batch is trained: role 'policy': the loss has no gradient",
        """
        def compute_loss(self, model_output, batch, reducer):
            if not self.mask(batch).any():
                return torch.zeros(()), {}
            return super().compute_loss(model_output, batch, reducer)
        """,
    ),
    "metric_sums": (
        "the metric 'ratio' sums to",
        """
        def compute_loss(self, model_output, batch, reducer):
            loss, _ = super().compute_loss(model_output, batch, reducer)
            return loss, {"ratio": loss.detach() / len(batch["response_lengths"])}
        """,
    ),
    "batch_keys": (
        "the loss reads 'teacher_log_probs'",
        """
        def advantages(self, log_probs, batch):
            return self.flat(batch, "teacher_log_probs")
        """,
    ),
    "loss_value": (
        "the loss has no gradient",
        """
        def ratio(self, log_probs, batch):
            return super().ratio(log_probs, batch).detach()
        """,
    ),
    "metrics": (
        "the metric 'count' is float",
        """
        def compute_loss(self, model_output, batch, reducer):
            loss, _ = super().compute_loss(model_output, batch, reducer)
            return loss, {"count": 1.0}
        """,
    ),
    "policy_gradient": (
        "from the advantages",
        """
        def per_token(self, log_probs, batch):
            return -super().per_token(log_probs, batch)
        """,
    ),
}
"""Check -> words of its message, and the methods of a loss that breaks the property."""

STAGES = {
    "sample_order": (
        "with the samples in reverse order",
        """
        def stage(batch, args):
            metrics = sound.group_advantages(batch, args)
            batch["advantages"][0] = batch["advantages"][0] * 3
            return metrics
        """,
    ),
    "edge_batches": (
        "every group has one sample",
        """
        def stage(batch, args):
            metrics = sound.group_advantages(batch, args)
            scale = 1e-3 if len(set(batch["group_indices"])) < len(batch["tokens"]) else float("nan")
            batch["advantages"] = [values + scale for values in batch["advantages"]]
            return metrics
        """,
    ),
    "removed_samples": (
        "beside a removed sample with reward None",
        """
        def stage(batch, args):
            import math
            rewards = [0.0 if math.isnan(reward) else reward for reward in batch["rewards"]]
            mean = sum(rewards) / len(rewards)
            batch["advantages"] = [torch.full((n,), r - mean) for r, n in zip(rewards, batch["response_lengths"])]
            return {"groups": float(len(batch["group_indices"]))}
        """,
    ),
    "non_finite_inputs": (
        "log_probs is nan at a trained token, and the step is taken all the same",
        """
        def stage(batch, args):
            batch["log_probs"] = [values.nan_to_num() for values in batch["log_probs"]]
            return sound.group_advantages(batch, args)
        """,
    ),
    "reward_credit": (
        "another reward for sample",
        """
        def stage(batch, args):
            metrics = sound.group_advantages(batch, args)
            lengths = batch["response_lengths"]
            values = [float(v[0]) for v in batch["advantages"]]
            batch["advantages"] = [torch.full((n,), v) for n, v in zip(lengths, values[3:] + values[:3])]
            return metrics
        """,
    ),
    "something_is_trained": (
        "the loss trains nothing",
        """
        def stage(batch, args):
            metrics = sound.group_advantages(batch, args)
            batch["advantages"] = [values * 0 for values in batch["advantages"]]
            return metrics
        """,
    ),
}
"""Check -> words of its message, and the stage that breaks the property."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """The two processes, for all tests of this module."""
    with Ranks() as processes:
        processes.start()
        yield processes


@pytest.fixture
def build(
    tmp_path: Path, sound_source: str, make_source: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., TrainingConfig]:
    """The sound recipe with methods or its stage replaced, in a module that other processes can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("stacx_core.recipes.REGISTRY.registrations", [])
    (tmp_path / "sound.py").write_text(sound_source)
    monkeypatch.delitem(sys.modules, "sound", raising=False)

    def make(name: str, loss: str = "", stage: str = "", **fields: Any) -> TrainingConfig:
        module = f"broken_{name}"
        (tmp_path / f"{module}.py").write_text(make_source(name, module, "Broken.", loss, stage))
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.import_module(module)
        config: TrainingConfig = importlib.import_module(module).build()
        return replace(config, **fields)

    return make


def only(config: TrainingConfig, check: str, ranks: Ranks | None = None) -> CheckResult:
    (result,) = check_recipe(config, [check], ranks)
    return result


def test_a_sound_recipe_passes_everything(build: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    pairs = ("preference", "not applicable", "the role reads no is_chosen")
    assert [(r.check, r.status, r.reason) for r in check_recipe(build("sound"), ranks=ranks)] == [
        pairs if name == "preference" else (name, "pass", "") for name in CHECKS
    ]


@pytest.mark.parametrize("check", LOSSES)
def test_a_loss_that_breaks_the_property_fails(build: Callable[..., TrainingConfig], ranks: Ranks, check: str) -> None:
    says, loss = LOSSES[check]
    result = only(build(check, loss=loss), check, ranks)
    assert result.status == "fail"
    assert says in result.reason


@pytest.mark.parametrize("check", STAGES)
def test_a_stage_that_breaks_the_property_fails(build: Callable[..., TrainingConfig], check: str) -> None:
    says, stage = STAGES[check]
    result = only(build(check, stage=stage), check)
    assert result.status == "fail"
    assert says in result.reason


def test_a_reference_to_nothing_fails_structure(build: Callable[..., TrainingConfig]) -> None:
    config = build("lost")
    role = replace(config.roles[0], prepare=("sound:no_such_stage",))
    result = only(replace(config, roles=(role,)), "structure")
    assert "has no 'no_such_stage'" in result.reason


def test_a_roll_in_that_is_not_there_fails_structure_and_stops_nothing(build: Callable[..., TrainingConfig]) -> None:
    config = build("rootless", rollout="sound:NoRollIn")
    results = {result.check: result for result in check_recipe(config, ["structure", "loss_value", "packing"])}
    assert "has no 'NoRollIn'" in results["structure"].reason
    assert "has no 'NoRollIn'" in results["loss_value"].reason
    assert results["packing"].status == "not applicable"


def test_samples_that_the_roll_in_adds_are_checked_too(build: Callable[..., TrainingConfig]) -> None:
    """The stage needs the sample that the roll-in adds to every rollout, and takes it out of the batch."""
    stage = """
    import dataclasses

    class RollIn:
        @classmethod
        def check_samples(cls, args, samples):
            return [*samples, dataclasses.replace(samples[0], index=None, metadata={"extra": True})]

    def stage(batch, args):
        (extra,) = [n for n, notes in enumerate(batch["metadata"]) if "extra" in notes]
        for key, values in batch.items():
            batch[key] = values[:extra] + values[extra + 1 :]
        return sound.group_advantages(batch, args)
    """
    config = build("companions", stage=stage, rollout="broken_companions:RollIn")
    checks = ["loss_value", "micro_batch_split", "packing", "siblings", "sample_order", "masked_rows"]
    assert {result.status for result in check_recipe(config, checks)} == {"pass"}


def test_a_lambda_fails_pickling(build: Callable[..., TrainingConfig]) -> None:
    result = only(build("lambda", check_args=lambda args: None), "pickling")
    assert "does not pickle" in result.reason


def test_what_is_not_claimed_must_be_refused(build: Callable[..., TrainingConfig]) -> None:
    everything = ("data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel")
    for supports in ((), ("data_parallel",), everything):
        assert only(build("claims", supports=supports), "unsupported_is_refused").status == "pass"


def test_a_recipe_that_is_not_data_parallel_is_not_run_on_two_processes(build: Callable[..., TrainingConfig]) -> None:
    result = only(build("alone", supports=()), "data_parallel")
    assert (result.status, result.reason) == (
        "not applicable",
        "the recipe does not list data_parallel in supports",
    )


def refuse(args: Any) -> None:
    """A check that no run can pass."""
    raise ConfigError("--seed must be even and odd")


def test_a_recipe_that_refuses_its_defaults_fails(build: Callable[..., TrainingConfig]) -> None:
    results = check_recipe(build("refusing", check_args=refuse))
    assert {result.check for result in results if result.status == "fail"} == {"default_arguments"}
    assert results[0].reason == "the recipe refuses its own defaults: --seed must be even and odd"
    assert results[1].reason == "the defaults are refused; see default_arguments"


def test_a_declared_key_that_nothing_writes_fails(build: Callable[..., TrainingConfig]) -> None:
    config = build("hopeful")
    role = replace(config.roles[0], reads={**config.roles[0].reads, "returns": ()})
    result = only(replace(config, roles=(role,)), "batch_keys")
    assert "the role reads 'returns', which nothing writes" in result.reason


def test_a_waived_check_does_not_apply_and_says_why(build: Callable[..., TrainingConfig]) -> None:
    waives = """
    def waives(self):
        return {"siblings": "the whole sequence is one action", "masked_rows": "no thanks"}
    """
    config = build("sequence", loss=dedent(waives) + REDUCED_ALONE)
    result = only(config, "siblings")
    assert (result.status, result.reason) == ("not applicable", "the whole sequence is one action")
    assert (only(config, "masked_rows").status, only(config, "masked_rows").reason) == ("pass", "")


def test_a_check_waived_under_some_arguments_passes_with_a_note(build: Callable[..., TrainingConfig]) -> None:
    knob = Knob("sequences", bool, False, "Take sequences for actions.", "broken")
    loss = """
    def waives(self):
        return {"siblings": "a sequence is one action"} if self.args.sequences else {}
    """
    result = only(build("note", loss=loss, knobs=(knob,)), "siblings")
    assert result.status == "pass"
    assert result.reason == "not under everything switched on: a sequence is one action"


def test_a_switch_is_tried_and_named(build: Callable[..., TrainingConfig]) -> None:
    knob = Knob("average", bool, False, "Average within a micro-batch.", "broken")
    loss = """
    def compute_loss(self, model_output, batch, reducer):
        loss, metrics = super().compute_loss(model_output, batch, reducer)
        return (loss / len(batch["response_lengths"]) if self.args.average else loss), metrics
    """
    result = only(build("switch", loss=loss, knobs=(knob,)), "micro_batch_split")
    assert result.status == "fail"
    assert result.where == "role 'policy', arguments: everything switched on"


def test_an_exception_is_a_failure_with_its_line(build: Callable[..., TrainingConfig]) -> None:
    loss = """
    def ratio(self, log_probs, batch):
        return log_probs / batch["tokens"].lengths
    """
    result = only(build("crash", loss=loss), "loss_value")
    assert result.reason.startswith("AttributeError: 'Tensor' object has no attribute 'lengths'")
    assert "raised in ratio, broken_crash.py:" in result.where
    assert only(build("crash", loss=loss), "packing").reason == "the loss cannot be computed; see loss_value"


def test_a_process_that_dies_is_reported_and_replaced(build: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    loss = """
    def ratio(self, log_probs, batch):
        import os
        import torch.distributed as dist
        if dist.is_initialized():
            os._exit(7)
        return super().ratio(log_probs, batch)
    """
    result = only(build("dying", loss=loss), "data_parallel", ranks)
    assert "ended with exit code 7" in result.reason
    assert only(build("living"), "data_parallel", ranks).status == "pass"


def test_a_model_role_that_is_frozen_is_not_checked(build: Callable[..., TrainingConfig]) -> None:
    config = build("frozen")
    frozen = ModelRole("reference", "sound:NoSuchClass", trainable=False)
    assert only(replace(config, roles=(*config.roles, frozen)), "loss_value").status == "pass"
