"""A run that is broken off and resumed is the unbroken one, bit for bit."""

from __future__ import annotations

import signal
import sys

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


KILLED = """
import os, signal, sys
from stacx_core.cli import main
from stacx_plugin_diffusion.models import flow_model
whole, saves = flow_model.save_network, 0

def fatal(*arguments):
    global saves
    whole(*arguments)
    saves += 1
    if saves == 3:
        os.kill(os.getpid(), signal.SIGKILL)

flow_model.save_network = fatal
main(sys.argv[1:])
"""


def test_a_run_killed_in_the_middle_of_a_save_goes_on_from_the_checkpoint_before(
    train, child, options, metrics, weights_of, tmp_path
):
    """Each checkpoint has two networks: the third save of one is in the middle of the second checkpoint."""
    flags = ("--distill-loss", "dmd", "--save-interval", "1", "--num-rollout", "3")
    assert train("flow_distill", *flags, output="unbroken").code == 0
    assert child("-c", KILLED, *options("flow_distill", *flags, output="broken")).returncode == -signal.SIGKILL
    checkpoints = tmp_path / "broken" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        ".writing-rollout_000002",
        "latest",
        "rollout_000001",
    ]
    resumed = train("flow_distill", *flags, "--resume", output="broken")
    assert resumed.code == 0, resumed.err
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "unbroken")
    last = [tmp_path / name / "checkpoints" / "rollout_000003" for name in ("broken", "unbroken")]
    assert weights_of(last[0]) == weights_of(last[1])


INTERRUPTING = """
import os, signal

calls = 0

def score(media, prompts):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return media.flatten(1).mean(1)
"""


def test_an_interrupted_run_is_saved_and_goes_on(train, metrics, monkeypatch, tmp_path):
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "interrupting", raising=False)
    flags = ("--rm-type", "interrupting:score", "--num-rollout", "4")
    broken = train("mix_grpo", *flags, output="broken")
    assert broken.code == 130
    assert "interrupted; saved after rollout 2, add --resume to go on" in broken.err
    assert train("mix_grpo", *flags, "--resume", output="broken").code == 0
    assert train("mix_grpo", *flags, output="unbroken").code == 0
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("algorithm", "flags", "message"),
    [
        ("flow_sft", ("--ema-decay", "0.5"), "has no role 'average': its run had none"),
        ("flow_distill", ("--distill-loss", "dmd"), "has no role 'critic': its run had none"),
        ("flow_grpo", ("--lora-rank", "2"), "the optimizer's state of role 'policy'"),
        ("flow_grpo", ("--dtype", "bf16"), "the optimizer's state of role 'policy'"),
    ],
)
def test_a_run_does_not_go_on_with_other_models(train, algorithm, flags, message):
    assert train(algorithm).code == 0
    done = train(algorithm, *flags, "--num-rollout", "4", "--resume")
    assert done.code == 1
    assert message in done.err
    assert "go on with the settings the run began with" in done.err
