"""A run that is broken off and resumed is the unbroken one, bit for bit."""

from __future__ import annotations

import pytest

MIX = ("--window-strategy", "progressive", "--window-rollouts", "2", "--sampling-steps", "6")
RUNS = [
    ("mix_grpo", MIX),
    ("mix_grpo", ("--window-strategy", "random", "--window-rollouts", "2", "--sampling-steps", "6")),
    ("diffusion_nft", ("--old-decay", "linear", "--lora-rank", "2")),
    ("diffusion_nft", ("--old-decay", "linear", "--dtype", "bf16")),
    ("flow_distill", ("--distill-loss", "dmd", "--student-every", "2")),
    ("flow_sft", ("--ema-decay", "0.9")),
    ("flow_dpo", ()),
    ("flow_grpo", ("--flow-kl-coef", "0.1", "--lora-rank", "2")),
]


@pytest.mark.parametrize(("algorithm", "flags"), RUNS)
def test_a_resumed_run_is_the_unbroken_one(train, metrics, weights_of, tmp_path, algorithm, flags):
    """Three of five rollouts, which is in the middle of a window, and of a decay that has begun."""
    assert train(algorithm, *flags, "--num-rollout", "5", output="unbroken").code == 0
    assert train(algorithm, *flags, "--num-rollout", "3", output="broken").code == 0
    resumed = train(algorithm, *flags, "--num-rollout", "5", "--resume", output="broken")
    assert resumed.code == 0, resumed.err
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "unbroken")
    last = [tmp_path / name / "checkpoints" / "rollout_000005" for name in ("broken", "unbroken")]
    found = weights_of(last[0])
    assert found == weights_of(last[1])
    assert found


def test_the_window_moves_on(train, metrics, tmp_path):
    assert train("mix_grpo", *MIX, "--num-rollout", "5").code == 0
    assert [line["rollout/window_start"] for line in metrics(tmp_path / "run")] == [0, 0, 1, 1, 2]
