"""The critic's loss on packed values: the rows it covers, its clip, its metrics, and what must not change it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stacx_core.objectives import Aggregation, make_reducer
from stacx_plugin_grpo.specialization import CriticSpecialization


def one_sample(output: list[float], mask: list[int] | None = None, **keys: list[float]) -> tuple[torch.Tensor, Any]:
    """A prompt of two tokens and a response of three, and the model's output for all five."""
    given = {"values": [0.0] * 3, "returns": [0.0] * 3, **keys}
    batch = {
        "tokens": torch.zeros(1, 5, dtype=torch.int64),
        "total_lengths": [5],
        "response_lengths": [3],
        "loss_masks": [torch.tensor(mask or [1, 1, 1], dtype=torch.int32)],
        **{key: [torch.tensor(row)] for key, row in given.items()},
    }
    return torch.tensor(output)[:, None].requires_grad_(), batch


def run(args: Any, output: torch.Tensor, batch: Any) -> tuple[torch.Tensor, dict[str, Any], torch.Tensor]:
    reducer = make_reducer(Aggregation.SAMPLE_MEAN, batch["response_lengths"], batch["loss_masks"])
    loss, metrics = CriticSpecialization(args).compute_loss(output, batch, reducer)
    (gradient,) = torch.autograd.grad(loss, output)
    return loss.detach(), metrics, gradient[:, 0]


def test_worked_values(arguments: Any) -> None:
    output, batch = one_sample([9.0, 0.5, 0.25, 0.1, 9.0], values=[0.1, 0.2, 0.3], returns=[0.6, 0.3, 0.0])
    loss, metrics, _ = run(arguments("ppo"), output, batch)
    assert loss.item() == pytest.approx(0.034167, abs=2e-6)
    assert metrics["value_clipfrac"].tolist() == [1.0, 3.0]
    assert metrics["return_mean"].tolist() == pytest.approx([0.9, 3.0], abs=2e-6)
    assert not any(metric.requires_grad for metric in metrics.values())
    half, _, _ = run(arguments("ppo", value_loss_scale=0.5), output, batch)
    assert half.item() == pytest.approx(0.034167 / 2, abs=2e-6)


def test_the_loss_covers_the_states_before_each_response_token(arguments: Any) -> None:
    """Rows 1 to 3 of five, and none of the others."""
    output, batch = one_sample([1.0] * 5)
    _, _, gradient = run(arguments("ppo"), output, batch)
    assert gradient.tolist() == pytest.approx([0.0, 2 / 3, 2 / 3, 2 / 3, 0.0])


@pytest.mark.parametrize("filling", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("key", ["values", "returns", "output"])
def test_a_masked_slot_changes_nothing(arguments: Any, key: str, filling: float) -> None:
    clean = run(arguments("ppo"), *one_sample([1.0] * 5, [1, 0, 1]))
    row = [0.0, filling, 0.0]
    rest = {} if key == "output" else {key: row}
    output = [1.0, 1.0, filling if key == "output" else 1.0, 1.0, 1.0]
    dirty = run(arguments("ppo"), *one_sample(output, [1, 0, 1], **rest))
    assert torch.equal(dirty[0], clean[0])
    assert torch.equal(dirty[2], clean[2])
    assert all(torch.equal(dirty[1][name], value) for name, value in clean[1].items())


def test_without_trained_tokens_the_graph_is_kept(arguments: Any) -> None:
    loss, metrics, gradient = run(arguments("ppo"), *one_sample([1.0] * 5, [0, 0, 0]))
    assert loss.item() == 0.0
    assert not gradient.any()
    assert metrics["value_mean"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("values", "explained"), [([1.0, 2.0, 3.0], 1.0), ([2.0, 2.0, 2.0], 0.0), ([0.0] * 3, 0.0)])
def test_explained_variance(arguments: Any, values: list[float], explained: float) -> None:
    """A constant error costs nothing, and a constant value explains nothing."""
    output, batch = one_sample([0.0, *values, 0.0], returns=[1.0, 2.0, 3.0])
    _, metrics, _ = run(arguments("ppo"), output, batch)
    means = {name: (pair[0] / pair[1]).item() for name, pair in metrics.items() if pair.dim()}
    summary = CriticSpecialization(arguments("ppo")).summarize(means)
    assert summary["explained_variance"] == pytest.approx(explained, abs=1e-6)
    assert set(summary) == {"value_clipfrac", "value_mean", "return_mean", "explained_variance"}


def test_equal_returns_have_no_variance_to_explain(arguments: Any) -> None:
    metrics = {"return_mean": 1.0, "return_square": 1.0, "error_mean": 0.5, "error_square": 0.25}
    assert CriticSpecialization(arguments("ppo")).summarize(metrics) == {"return_mean": 1.0}
