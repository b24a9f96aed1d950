"""Every recipe through the public command."""

from __future__ import annotations

import json
import math

import pytest

VARIANTS = [
    ("flow_sft", ()),
    ("flow_sft", ("--ema-decay", "0.9", "--sigma-draws", "3", "--eval-data", "digits:test", "--eval-limit", "6")),
    ("flow_grpo", ("--flow-kl-coef", "0.1", "--step-fraction", "0.6", "--guidance-scale", "2")),
    ("flow_grpo", ("--grpo-guard", "--dynamics", "dance_sde", "--flow-kl-coef", "0.1", "--flow-kl", "velocity")),
    ("flow_grpo", ("--same-noise", "group", "--log-prob-reduction", "sum", "--advantage-std", "none")),
    ("mix_grpo", ("--window-rollouts", "1", "--window-strategy", "progressive", "--window-size", "1")),
    ("mix_grpo", ("--cps-log-prob", "unnormalised", "--window-strategy", "exp_decay")),
    ("diffusion_nft", ("--nft-ref-coef", "0", "--nft-levels", "uniform", "--nft-draws", "5")),
    ("diffusion_nft", ("--nft-loss", "awm", "--awm-clip", "0.2", "--awm-weight", "ghuber", "--old-decay", "copy")),
    ("flow_dpo", ("--flow-dpo-beta-scale", "data", "--flow-dpo-sft-coef", "0.1", "--pair-draws", "2")),
    ("flow_distill", ("--loss-weight", "cosmap")),
    ("flow_distill", ("--distill-loss", "transition_kl", "--dynamics", "cps")),
    ("flow_distill", ("--distill-loss", "dmd", "--sampling-steps", "2", "--student-every", "2", "--critic-lr", "1e-3")),
]


@pytest.mark.parametrize(("algorithm", "flags"), VARIANTS)
def test_every_variant_trains(train, metrics, tmp_path, algorithm, flags):
    done = train(algorithm, *flags)
    assert done.code == 0, done.err
    lines = [line for line in metrics(tmp_path / "run") if line["rollout"] > 0]
    assert [line["rollout"] for line in lines] == [1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    norms = [name for name in lines[-1] if name.endswith("grad_norm")]
    assert norms
    assert all(lines[-1][name] > 0 for name in norms)


def test_the_loss_is_the_same_for_other_micro_batches(train, recipe):
    done = train(recipe, "--check-loss-invariance", "--micro-batch-size", "1", "--global-batch-size", "2")
    assert done.code == 0, done.err


def test_checkpoints_are_the_same_when_they_are_written_meanwhile(train, weights_of, tmp_path, recipe):
    flags = ("--save-interval", "1", "--num-rollout", "3")
    assert train(recipe, *flags, output="between").code == 0
    assert train(recipe, *flags, "--async-save", output="meanwhile").code == 0
    for rollout in (1, 2, 3):
        folders = [tmp_path / name / "checkpoints" / f"rollout_{rollout:06d}" for name in ("between", "meanwhile")]
        assert folders[0].is_dir() == folders[1].is_dir()
        assert not folders[0].is_dir() or weights_of(folders[0]) == weights_of(folders[1])


@pytest.mark.parametrize("flags", [("--gradient-checkpointing",), ("--dtype", "bf16"), ("--lora-rank", "2")])
def test_other_ways_to_hold_a_model(train, metrics, tmp_path, recipe, flags):
    done = train(recipe, *flags)
    assert done.code == 0, done.err
    assert all(math.isfinite(value) for line in metrics(tmp_path / "run") for value in line.values())


def test_gradient_checkpointing_changes_nothing(train, metrics, tmp_path):
    assert train("flow_grpo", output="kept").code == train("flow_grpo", "--gradient-checkpointing").code == 0
    kept, again = metrics(tmp_path / "kept")[-1], metrics(tmp_path / "run")[-1]
    assert kept == pytest.approx(again, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("network", ["sd3", "flux"], indirect=True)
def test_networks_of_diffusers_train(train, metrics, digits_checkpoints, tmp_path, recipe, network):
    done = train(recipe, "--hf-checkpoint", digits_checkpoints[network], "--num-rollout", "1")
    assert done.code == 0, done.err
    (line,) = metrics(tmp_path / "run")
    assert line["train/grad_norm"] > 0


def test_a_recipe_is_shown_with_the_keys_and_knobs_of_its_models(stacx, recipe):
    done = stacx("show-recipe", recipe, "--json")
    assert done.code == 0, done.err
    page = json.loads(done.out)
    assert {"sigmas", "--sampling-steps", "--rollout-max-response-len"} & set(names_in(page)) == {
        "sigmas",
        "--sampling-steps",
    }


def names_in(value):
    """Every text of a page."""
    if isinstance(value, dict):
        value = list(value.values())
    return [text for entry in value for text in names_in(entry)] if isinstance(value, list) else [value]
