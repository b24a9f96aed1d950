"""The loss of a mixture on packed logits: routing, metrics, temperatures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import Args, BatchError
from stacx_core.objectives import make_reducer
from stacx_plugin_dagger.specialization import MixedLossDaggerOPDSpecialization

STUDENT = [[-0.5, -1.2, -0.3], [-0.9, -2.0, -0.7, -1.1]]
TEACHER = [[1.0, 1.0, 1.0], [-0.7, 0.0, -0.9, 1.0]]
MASKS = [[1, 1, 1], [1, 0, 1, 1]]
VOCABULARY = 6


def arguments(**values: Any) -> Args:
    given = {"rollout_temperature": 1.0, "log_probs_chunk_size": 3, "mix_ce_weight": 1.0, "mix_k3_weight": 1.0}
    return Args.of(**given | values)


def rows_of(log_probs: Sequence[float], ids: Sequence[int]) -> Tensor:
    """Logits ``[L, V]`` whose softmax gives each token behind the first two exactly its log-prob."""
    rows = torch.zeros(len(ids), VOCABULARY)
    for t, log_prob in enumerate(log_probs):
        rows[t + 1] = math.log((1 - math.exp(log_prob)) / (VOCABULARY - 1))
        rows[t + 1, ids[t + 2]] = log_prob
    return rows


def run(
    args: Args, teacher: Sequence[Sequence[float]], masks: Sequence[Sequence[int]] = MASKS
) -> tuple[float, dict[str, Tensor], Tensor]:
    """Numerator, metrics and gradient of both samples packed together."""
    tokens = [torch.tensor([(3 * t + 1) % VOCABULARY for t in range(2 + len(values))]) for values in STUDENT]
    logits = torch.cat([rows_of(values, ids.tolist()) for values, ids in zip(STUDENT, tokens, strict=True)])
    logits.requires_grad_()
    batch = {
        "tokens": torch.cat(tokens)[None],
        "total_lengths": [len(ids) for ids in tokens],
        "response_lengths": [len(mask) for mask in masks],
        "loss_masks": [torch.tensor(mask, dtype=torch.int32) for mask in masks],
        "teacher_log_probs": [torch.tensor(values) for values in teacher],
    }
    reducer = make_reducer("sample_mean", batch["response_lengths"], batch["loss_masks"])
    loss, metrics = MixedLossDaggerOPDSpecialization(args).compute_loss(logits, batch, reducer)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), metrics, gradient


def means(metrics: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    return {name: (round(pair[0].item() / max(pair[1].item(), 1), 6), pair[1].item()) for name, pair in metrics.items()}


def test_the_worked_loss_and_its_metrics() -> None:
    loss, metrics, _ = run(arguments(), TEACHER)
    assert loss == pytest.approx(1.046711, abs=2e-6)
    assert means(metrics) == {
        "ce_mean": (pytest.approx(0.775, abs=2e-6), 4),
        "k3_mean": (pytest.approx(0.020067, abs=2e-6), 2),
        "teacher_action_frac": (pytest.approx(0.666667, abs=2e-6), 6),
    }


def test_weights_change_the_loss_and_not_the_metrics() -> None:
    _, plain, _ = run(arguments(), TEACHER)
    loss, metrics, _ = run(arguments(mix_ce_weight=2.0, mix_k3_weight=0.5), TEACHER)
    expected = 2 * (0.5 + 1.2 + 0.3) / 3 + (0.5 * (0.021403 + 0.018731) + 2 * 1.1) / 3
    assert loss == pytest.approx(expected, abs=2e-6)
    assert means(metrics) == means(plain)


def test_a_kind_of_token_that_does_not_occur_counts_nothing() -> None:
    _, metrics, _ = run(arguments(), [[1.0] * 3, [1.0] * 4])
    assert metrics["k3_mean"].tolist() == [0.0, 0.0]
    assert means(metrics)["teacher_action_frac"] == (1.0, 6)


@pytest.mark.parametrize("hidden", [1.0, 0.3, math.nan, math.inf])
def test_what_stands_at_a_masked_token_is_not_read(hidden: float) -> None:
    expected = run(arguments(), TEACHER)
    found = run(arguments(), [TEACHER[0], [-0.7, hidden, -0.9, 1.0]])
    assert found[0] == expected[0]
    assert means(found[1]) == means(expected[1])
    assert torch.equal(found[2], expected[2])


def test_a_corrupt_sentinel_is_refused() -> None:
    with pytest.raises(BatchError, match=r"holds 0\.30"):
        run(arguments(), [TEACHER[0], [0.3, 0.0, -0.9, 1.0]])


def test_imitation_ignores_the_sampling_temperature_and_distillation_does_not() -> None:
    _, cold, _ = run(arguments(rollout_temperature=0.5), TEACHER)
    _, plain, _ = run(arguments(), TEACHER)
    assert means(cold)["ce_mean"] == means(plain)["ce_mean"]

    def sampled(log_prob: float) -> float:
        other = (1 - math.exp(log_prob)) / 5
        return 2 * log_prob - math.log(math.exp(2 * log_prob) + 5 * other**2)

    gaps = [-0.7 - sampled(-0.9), -0.9 - sampled(-0.7)]
    expected = sum(math.exp(gap) - 1 - gap for gap in gaps) / 2
    assert means(cold)["k3_mean"] == (pytest.approx(expected, abs=2e-6), 2)
