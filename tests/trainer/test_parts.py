"""Smaller parts of the trainer: metrics of a step, syncs between roles, signals."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from stacx_core import BatchError, DataSync, ModelRole, TrainingConfig
from stacx_core.trainer.interrupts import Interrupts
from stacx_core.trainer.step_metrics import StepMetrics
from stacx_core.trainer.syncs import LocalChannel, active_syncs


def test_numerators_are_normalised_and_pairs_divided_over_the_step() -> None:
    """Means 2 and 5 over 1 and 3 tokens: (2 + 15) / 4, whatever the micro-batches."""
    step = StepMetrics()
    step.add({"loss": torch.tensor(3.0), "entropy": torch.tensor([2.0, 1.0]), "none": torch.tensor([0.0, 0.0])})
    step.add({"loss": torch.tensor(5.0), "entropy": torch.tensor([15.0, 3.0]), "none": torch.tensor([0.0, 0.0])})
    assert step.result(4) == {"loss": 2.0, "entropy": 4.25}


def test_a_metric_of_another_shape_is_refused() -> None:
    with pytest.raises(BatchError, match=r"metric 'odd' has shape \[3\]; use 0-d, or \[2\] for \(sum, count\)"):
        StepMetrics().add({"odd": torch.zeros(3)})


def batches() -> dict[str, Any]:
    return {
        "actor": {"response_lengths": [2, 1], "log_probs": [torch.zeros(2), torch.zeros(1)]},
        "critic": {"response_lengths": [2, 1], "values": [torch.ones(2), torch.ones(1)]},
    }


EXCHANGE = DataSync("critic", "actor", ("values",), mode="exchange", reverse_keys=("log_probs",))


def test_an_exchange_goes_both_ways() -> None:
    both = batches()
    LocalChannel("ppo", EXCHANGE).transfer(both)
    assert both["actor"]["values"] is both["critic"]["values"]
    assert both["critic"]["log_probs"] is both["actor"]["log_probs"]


def test_a_missing_key_is_named_before_anything_moves() -> None:
    both = batches()
    del both["actor"]["log_probs"]
    with pytest.raises(BatchError, match="recipe 'ppo': role 'actor' did not produce 'log_probs'"):
        LocalChannel("ppo", EXCHANGE).transfer(both)
    assert "values" not in both["actor"]


def test_a_key_of_the_wrong_length_names_the_sample() -> None:
    both = batches()
    both["critic"]["values"][1] = torch.ones(3)
    with pytest.raises(BatchError, match=r"role 'critic': 'values' of sample 1 has length 3, expected 1"):
        LocalChannel("ppo", EXCHANGE).transfer(both)


def test_only_the_syncs_that_apply_are_active(host_args: Any) -> None:
    roles = tuple(ModelRole(name, "package.module:Loss", sync_to_rollout=name == "a") for name in ("a", "b"))
    syncs = (DataSync("a", "b", ("values",)), DataSync("b", "a", ("returns",), when=lambda args: args.use_critic))
    config = TrainingConfig("both", roles, syncs)
    assert active_syncs(config, host_args()) == [syncs[0]]
    assert active_syncs(config, host_args(use_critic=True)) == list(syncs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_weights_are_consistent(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    reached = []

    def update() -> None:
        with interrupts.held():
            os.kill(os.getpid(), number)
            reached.append("end of the update")

    with interrupts.installed():
        with pytest.raises(KeyboardInterrupt):
            update()
        with pytest.raises(SystemExit) as second:
            os.kill(os.getpid(), number)
    assert reached == ["end of the update"]
    assert second.value.code == 130
    assert capfd.readouterr().err == "error: interrupted again, without saving\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_elsewhere_acts_at_once() -> None:
    interrupts = Interrupts()
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
