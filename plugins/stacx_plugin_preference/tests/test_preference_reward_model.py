"""Bradley-Terry on packed values: each response is judged at its last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import Args, BatchError
from stacx_core.objectives import make_reducer
from stacx_plugin_preference.reward_model import RewardModelSpecialization
from stacx_plugin_preference.rows import MARGIN

REWARDS = [1.2, 0.4, -0.3, 0.5]
RESPONSES = [2, 3, 1, 2]


def batch_of(**keys: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Values of two pairs, with REWARDS at their last tokens and 9 elsewhere, and the batch."""
    values = [torch.full((1 + length, 1), 9.0, dtype=torch.float64) for length in RESPONSES]
    for column, reward in zip(values, REWARDS, strict=True):
        column[-1] = reward
    return values, {
        "total_lengths": [1 + length for length in RESPONSES],
        "response_lengths": RESPONSES,
        "loss_masks": [torch.ones(length, dtype=torch.int32) for length in RESPONSES],
        "pair_ids": [0, 0, 1, 1],
        "is_chosen": [True, False, True, False],
        "metadata": [{}, {}, {}, {}],
        **keys,
    }


def run(
    values: list[Tensor], batch: dict[str, Any], positions: Sequence[int], center: float = 0.0
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Numerator, metrics and gradient of the micro-batch of the samples at ``positions``."""
    part = {key: [entries[i] for i in positions] for key, entries in batch.items()}
    packed = torch.cat([values[i] for i in positions]).requires_grad_()
    reducer = make_reducer("sample_mean", part["response_lengths"], part["loss_masks"])
    loss, metrics = RewardModelSpecialization(Args.of(rm_center_coef=center)).compute_loss(packed, part, reducer)
    (gradient,) = torch.autograd.grad(loss, packed)
    return loss.detach(), metrics, gradient


def test_worked_values() -> None:
    values, batch = batch_of()
    assert run(values, batch, [0, 1])[0].item() == pytest.approx(0.371101, abs=2e-6)
    assert run(values, batch, [0, 1], center=0.01)[0].item() == pytest.approx(0.371101 + 0.01 * 1.6**2, abs=2e-6)
    batch["metadata"] = [{MARGIN: 0.5}] * 4
    assert run(values, batch, [0, 1])[0].item() == pytest.approx(0.554355, abs=2e-6)
    fp32 = [column.float() for column in values]
    assert run(fp32, batch, [0, 1])[0].item() == pytest.approx(0.554355, abs=2e-6)


def test_metrics() -> None:
    _, metrics, _ = run(*batch_of(), [0, 1, 2, 3])
    assert {name: (pair[0] / pair[1]).item() for name, pair in metrics.items()} == pytest.approx(
        {"rewards_chosen": 0.45, "rewards_rejected": 0.45, "margin": 0.0, "accuracy": 0.5, "dropped_pairs": 0.0}
    )


def test_only_last_tokens_have_a_gradient() -> None:
    _, _, gradient = run(*batch_of(), [0, 1])
    assert gradient[:, 0].nonzero().flatten().tolist() == [2, 6]
    assert gradient[2].item() == pytest.approx(-gradient[6].item())


def test_neither_the_cut_nor_the_order_matters() -> None:
    values, batch = batch_of(metadata=[{MARGIN: 0.5}, {MARGIN: 0.5}, {MARGIN: 1.0}, {MARGIN: 1.0}])
    whole, _, gradient = run(values, batch, [0, 1, 2, 3], center=0.1)
    first, second = (run(values, batch, part, center=0.1) for part in ([0, 1], [2, 3]))
    torch.testing.assert_close(first[0] + second[0], whole)
    torch.testing.assert_close(torch.cat([first[2], second[2]]), gradient)
    torch.testing.assert_close(run(values, batch, [3, 0, 2, 1], center=0.1)[0], whole)


def test_a_pair_with_a_side_that_is_not_trained_on_adds_nothing() -> None:
    values, batch = batch_of()
    batch["loss_masks"][3] = torch.zeros(2, dtype=torch.int32)
    loss, metrics, gradient = run(values, batch, [0, 1, 2, 3])
    assert loss.item() == pytest.approx(0.371101, abs=2e-6)
    assert not gradient[7:].any()
    assert metrics["accuracy"].tolist() == [1.0, 1.0]
    assert metrics["dropped_pairs"].tolist() == [1.0, 2.0]


def test_a_broken_pair_is_named() -> None:
    with pytest.raises(BatchError, match="pair 1 has 1 chosen and 0 rejected samples"):
        run(*batch_of(), [0, 1, 2])
