"""Worked examples of one optimizer step, with a model of one weight w whose every logit is w.

The loss of a response token is a given number c times w, so at w = 1 the loss of a step and its gradient are the same
weighted mean of the c, and plain SGD at rate 1 moves w by it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stacx_core import Batch, ModelRole, NonFiniteError
from stacx_core.data.batch import samples_to_batch
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.objectives import Reducer
from stacx_core.plugins import plugin_host
from stacx_core.specialization import CausalDecoderSpecialization
from stacx_core.trainer.language_worker import LanguageWorker


class OneWeight(nn.Module):
    """All logits are w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.w.expand(*input_ids.shape, 1))


class Given(CausalDecoderSpecialization):
    """Takes the factor c of each token from the batch."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        factors = self.flat(batch, "advantages")
        return reducer(factors * model_output[0, 0]), {"factor": self.mean_pair(factors, batch)}


@pytest.fixture
def worker(host_args: Any) -> Any:
    def build(**given: Any) -> LanguageWorker:
        args = host_args(**{"lr": 1.0, "optimizer": "sgd", "clip_grad": 0.0, "rollout_max_response_len": 8, **given})
        return LanguageWorker(ModelRole("policy", Given), OneWeight(), Given(args), args, plugin_host().hook)

    return build


def batch_of(*factors: list[float], cut: tuple[int, ...] = (), mask_truncated: bool = True) -> Batch:
    """One sample of one prompt token per list of factors; those numbered in ``cut`` were cut at the limit."""
    samples = [
        Sample(
            index=i,
            tokens=[0] * (len(row) + 1),
            response_length=len(row),
            status=SampleStatus.TRUNCATED if i in cut else SampleStatus.COMPLETED,
        )
        for i, row in enumerate(factors)
    ]
    batch, _ = samples_to_batch(samples, mask_truncated=mask_truncated, reward_key=None)
    return {**batch, "advantages": [torch.tensor(row) for row in factors]}


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 4, None])
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", 2.1), ("sample_mean", 2.5), ("seq_mean_token_sum", 5.25), ("constant", 0.65625)],
)
def test_every_aggregation_of_four_rows(worker: Any, micro_batch_size: Any, aggregation: str, expected: float) -> None:
    """21 over 10 tokens; (4 + 1 + 2 + 3) / 4 rows; 21 / 4 rows; 21 / (4 rows x 8 tokens)."""
    trained = worker(loss_aggregation=aggregation, micro_batch_size=micro_batch_size)
    metrics = trained.train_step(batch_of([4.0], [1.0] * 3, [2.0] * 4, [0.0, 6.0]), 1)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-6)
    assert metrics["factor"] == pytest.approx(2.1, rel=1e-6)
    assert trained.model.w.item() == pytest.approx(1 - expected, rel=1e-6)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4, 8])
def test_the_gradient_does_not_shrink_with_accumulation(worker: Any, micro_batch_size: int) -> None:
    trained = worker(loss_aggregation="token_mean", micro_batch_size=micro_batch_size)
    metrics = trained.train_step(batch_of(*[[1.0]] * 8), 1)
    assert metrics["grad_norm"] == pytest.approx(1.0, rel=1e-6)


def test_a_step_is_normalised_over_its_own_samples(worker: Any) -> None:
    """Four one-token rows in two steps of two micro-batches: each step has gradient 1, not 1/2."""
    trained = worker(loss_aggregation="token_mean", micro_batch_size=1)
    for _ in range(2):
        assert trained.train_step(batch_of([1.0], [1.0]), 2)["grad_norm"] == 1.0
    assert trained.model.w.item() == -1.0


def test_a_masked_row_counts_neither_above_nor_below_the_line(worker: Any) -> None:
    """Four tokens of loss 0.5; the row of 9.0 was cut: 0.5, not 4 x 0.5 / 10."""
    trained = worker(loss_aggregation="token_mean")
    assert trained.train_step(batch_of([0.5] * 4, [9.0] * 6, cut=(1,)), 1)["loss"] == 0.5
    kept = worker(loss_aggregation="token_mean")
    unmasked = batch_of([0.5] * 4, [9.0] * 6, cut=(1,), mask_truncated=False)
    assert kept.train_step(unmasked, 1)["loss"] == pytest.approx(5.6)


def test_a_step_without_a_trained_token_moves_nothing_and_warns(worker: Any, caplog: Any) -> None:
    trained = worker(optimizer="adam")
    trained.train_step(batch_of([1.0]), 2)
    before = trained.model.w.item()
    metrics = trained.train_step(batch_of([0.5], [9.0], cut=(0, 1)), 2)
    assert metrics == {"loss": 0.0, "grad_norm": 0.0, "skipped_step": 1.0}
    assert (trained.model.w.item(), trained.optimizer.updates) == (before, 1)
    assert [record.message for record in caplog.records] == [
        "role 'policy': every loss mask of this step is 0; the step is skipped"
    ]


def test_a_gradient_of_zero_moves_nothing(worker: Any) -> None:
    """AdamW alone would go on by momentum and weight decay."""
    trained = worker(optimizer="adam", weight_decay=0.1)
    trained.train_step(batch_of([1.0]), 2)
    before = trained.model.w.item()
    metrics = trained.train_step(batch_of([0.0, 0.0]), 2)
    assert (metrics["grad_norm"], metrics["skipped_step"], metrics["loss"]) == (0.0, 1.0, 0.0)
    assert (trained.model.w.item(), trained.optimizer.updates) == (before, 1)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(worker: Any, factor: float) -> None:
    trained = worker(micro_batch_size=1)
    with pytest.raises(NonFiniteError, match=r"role 'policy': the loss of samples 1 is (nan|inf)"):
        trained.train_step(batch_of([1.0], [factor]), 1)
    assert (trained.model.w.item(), trained.optimizer.updates) == (1.0, 0)


def test_a_gradient_that_overflows_leaves_the_weights_alone(worker: Any) -> None:
    """Each loss is finite in fp32, but their gradients add up to more than it holds."""
    trained = worker(micro_batch_size=1, loss_aggregation="seq_mean_token_sum")
    row = [3e38, -3e38]
    trained.model.w.register_hook(lambda gradient: gradient + 3e38)
    with pytest.raises(NonFiniteError, match="gradient norm of update 0 is inf"):
        trained.train_step(batch_of(row, row), 1)
    assert trained.model.w.item() == 1.0


def test_the_rate_falls_with_the_updates(worker: Any) -> None:
    trained = worker(lr_decay_style="linear")
    assert [trained.train_step(batch_of([1.0]), 4)["lr"] for _ in range(4)] == [1.0, 0.75, 0.5, 0.25]
