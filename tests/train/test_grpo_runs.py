"""`stacx train --algorithm grpo` with each of its options, on the tiny checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SHORT = ["--n-samples-per-prompt", "4", "--num-rollout", "2"]
REFERENCE = "--use-kl-loss --kl-loss-coef 0.1 --ref-load {checkpoint}"
OPTIONS = {
    "plain": "",
    **{f"kl {kind}": f"{REFERENCE} --kl-loss-type {kind}" for kind in ("k1", "k2", "k3", "low_var_kl")},
    "unbiased kl": f"{REFERENCE} --kl-loss-type k3 --use-unbiased-kl",
    "tis": "--use-tis --num-steps-per-rollout 2",
    "engine log-probs": "--use-rollout-logprobs --num-steps-per-rollout 2",
    "two steps": "--num-steps-per-rollout 2 --eps-clip-high 0.28 --eps-clip-c 3",
    "two epochs": "--epochs-per-rollout 2",
    "steps by size": "--global-batch-size 8",
    "scored first": "--recompute-log-probs",
    "entropy": "--entropy-coef 0.01",
    **{f"mean {a}": f"--loss-aggregation {a}" for a in ("token_mean", "seq_mean_token_sum", "constant")},
    "token mean by slime's switch": "--calculate-per-token-loss",
    "cut responses masked": "--mask-truncated --group-of-one raw",
    "cut responses without a vote": "--no-truncated-in-group-stats --group-of-one raw",
    "dr grpo": "--disable-grpo-std-normalization --loss-aggregation constant",
    "sgd": "--optimizer sgd --weight-decay 0.01 --clip-grad 0",
    "warm-up": "--lr-warmup-iters 1 --lr-decay-style cosine --min-lr 1e-5",
    "cut": "--micro-batch-size 3 --gradient-checkpointing",
    "few tokens": "--max-tokens-per-gpu 12 --log-probs-chunk-size 2 --rollout-max-running 3",
    "truncated sampling": "--rollout-top-k 5 --rollout-top-p 0.9 --rollout-temperature 0.6",
    "in order": "--no-rollout-shuffle",
}

TWO_UPDATES = ("tis", "engine log-probs", "two steps", "two epochs", "steps by size")


@pytest.fixture
def run(train: Any, metrics: Any, rewards: Path, checkpoint: Path, tmp_path: Path) -> Any:
    """The metrics of a short run with some flags."""

    def go(flags: str = "", output: str = "run") -> list[dict[str, float]]:
        given = flags.format(checkpoint=checkpoint).split()
        done = train("grpo", "--rm-type", "fatal_rewards:digits", *SHORT, *given, output=output)
        assert done.code == 0, done.err
        lines: list[dict[str, float]] = metrics(tmp_path / output)
        return lines

    return go


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_trains_with_finite_metrics(run: Any, name: str) -> None:
    lines = run(OPTIONS[name])
    assert [line["rollout"] for line in lines] == [1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    first = lines[0]
    assert first["train/train_rollout_ratio"] == pytest.approx(1, abs=1e-4)
    assert first["train/train_rollout_abs_diff"] < 1e-4
    assert first["train/updates"] == (2 if name in TWO_UPDATES else 1)


def test_bf16_trains_with_finite_metrics(run: Any) -> None:
    lines = run(f"--dtype bf16 --num-steps-per-rollout 2 {REFERENCE}")
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert lines[0]["train/train_rollout_ratio"] == pytest.approx(1, abs=0.02)


def test_the_reference_is_scored_at_the_sampling_temperature(run: Any) -> None:
    """Policy and reference are the same model before the first update, so that their divergence is 0."""
    first = run(f"{REFERENCE} --kl-loss-type k2 --rollout-temperature 0.5")[0]
    assert first["train/kl_loss"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("aggregation", ["sample_mean", "token_mean", "seq_mean_token_sum", "constant"])
def test_the_logged_loss_does_not_depend_on_the_micro_batches(run: Any, aggregation: str) -> None:
    flags = f"--loss-aggregation {aggregation} --entropy-coef 0.1"
    whole = run(flags, "whole")[0]
    for size in (1, 2, 5):
        part = run(f"{flags} --micro-batch-size {size}", f"by{size}")[0]
        for key in ("train/loss", "train/grad_norm", "train/entropy", "train/clipfrac"):
            assert part[key] == pytest.approx(whole[key], rel=1e-5, abs=1e-7)


def test_a_run_repeats_itself_and_follows_its_seed(run: Any) -> None:
    first, again, other = run(output="a"), run(output="b"), run("--seed 7", "c")
    assert first == again
    assert first != other


def test_flat_groups_move_no_weight(run: Any, checkpoint: Path, tmp_path: Path) -> None:
    """Equal rewards give advantages of exactly 0."""
    lines = run("--rm-type fatal_rewards:constant")
    assert [line["rollout/reward_mean"] for line in lines] == [0.5, 0.5]
    assert [line["train/flat_group_frac"] for line in lines] == [1, 1]
    assert [line["train/skipped_step"] for line in lines] == [1, 1]
    assert [line["train/updates"] for line in lines] == [0, 0]
    saved = load_file(tmp_path / "run" / "checkpoints" / "latest" / "policy" / "model.safetensors")
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(weight, saved[name])


def test_a_rollout_of_cut_responses_is_skipped_when_they_are_masked(run: Any) -> None:
    """One token each, and none of the eight is an end token."""
    lines = run("--mask-truncated --rollout-max-response-len 1 --rollout-batch-size 2")
    assert [line["rollout/truncated_frac"] for line in lines] == [1, 1]
    for line in lines:
        assert (line["rollout/loss_tokens"], line["rollout/response_tokens"]) == (0, 8)
        assert (line["train/loss"], line["train/grad_norm"], line["train/skipped_step"]) == (0, 0, 1)


def test_prompts_without_room_for_a_response_are_left_out_and_counted(train: Any, metrics: Any, tmp_path: Path) -> None:
    data = tmp_path / "mixed.jsonl"
    data.write_text("".join(json.dumps({"prompt": p, "label": "2"}) + "\n" for p in ("1+1=", "1+1+1+1+1+1=")))
    flags = ["--rm-type", "exact", "--prompt-data", data, *SHORT]
    done = train("grpo", *flags, "--max-sequence-len", "8")
    assert done.code == 0, done.err
    assert [line["rollout/dropped_rows"] for line in metrics(tmp_path / "run")] == [1, 1]


def test_a_model_that_has_diverged_ends_the_run(train: Any, metrics: Any, tmp_path: Path) -> None:
    flags = ["--rm-type", "exact", *SHORT, "--num-rollout", "5", "--save-interval", "1", "--entropy-coef", "0.1"]
    done = train("grpo", *flags, "--lr", "1e30")
    assert done.code == 4
    assert "Traceback" not in done.err
    last = metrics(tmp_path / "run")[-1]["rollout"]
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve().name == f"rollout_{int(last):06d}"
