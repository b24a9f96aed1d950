"""The mixed loss: worked values, gradients, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core import TEACHER_TOKEN, BatchError, sum_of_sample_mean
from stacx_plugin_dagger.objectives import mixed_loss, written_by_teacher

STUDENT = [-0.50, -1.20, -0.30, -0.90, -2.00, -0.70, -1.10]
MIXED = [1.0, 1.0, 1.0, -0.7, -1.6, -0.9, 1.0]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]


def loss_of(student: torch.Tensor, teacher: list[float]) -> torch.Tensor:
    values = student.new_tensor(teacher)
    return mixed_loss(student, values, written_by_teacher(values))


def test_the_worked_values() -> None:
    losses = loss_of(torch.tensor(STUDENT), MIXED)
    assert losses.tolist() == pytest.approx([0.5, 1.2, 0.3, 0.021403, 0.091825, 0.018731, 1.1], abs=2e-6)
    assert sum_of_sample_mean(losses, [3, 4], MASKS).item() == pytest.approx(1.046711, abs=2e-6)


@pytest.mark.parametrize(
    ("teacher", "expected"),
    [([1.0] * 7, 1.566667), ([-0.40, -1.50, -0.20, -0.70, -1.60, -0.90, -1.30], 0.036675)],
)
def test_the_two_ends(teacher: list[float], expected: float) -> None:
    losses = loss_of(torch.tensor(STUDENT), teacher)
    assert sum_of_sample_mean(losses, [3, 4], MASKS).item() == pytest.approx(expected, abs=2e-6)


def test_the_direction_of_the_distilled_tokens() -> None:
    """Student -1.2, -0.3, -1.0 against teacher -0.7, -2.3, -1.0: below the teacher the log-prob is pushed up."""
    student = torch.tensor([-1.2, -0.3, -1.0], dtype=torch.float64, requires_grad=True)
    losses = loss_of(student, [-0.7, -2.3, -1.0])
    assert losses.tolist() == pytest.approx([0.148721, 1.135335, 0.0], abs=1e-6)
    (gradient,) = torch.autograd.grad(losses.sum(), student)
    assert gradient.tolist() == pytest.approx([-0.648721, 0.864665, 0.0], abs=1e-6)


def test_a_step_raises_what_the_teacher_prefers() -> None:
    logits = torch.zeros(3, requires_grad=True)
    loss_of(logits.log_softmax(-1)[:1], [math.log(0.9)]).sum().backward()
    assert (logits.detach() - logits.grad).log_softmax(-1)[0] > -math.log(3)


@given(st.lists(st.tuples(st.floats(-200, 0), st.floats(-200, 0) | st.just(TEACHER_TOKEN)), min_size=1, max_size=8))
def test_values_and_gradients_are_finite_and_bounded(pairs: list[tuple[float, float]]) -> None:
    student = torch.tensor([s for s, _ in pairs], requires_grad=True)
    teacher = [t for _, t in pairs]
    losses = loss_of(student, teacher)
    (gradient,) = torch.autograd.grad(losses.sum(), student)
    assert torch.isfinite(gradient).all()
    assert (losses >= 0).all()
    for loss, slope, s, t in zip(losses.tolist(), gradient.tolist(), student.tolist(), teacher, strict=True):
        assert (loss, slope) == (-s, -1.0) if t == TEACHER_TOKEN else loss <= 10


def test_an_improbable_token_of_either_writer() -> None:
    student = torch.tensor([-80.0, -80.0, -80.0], requires_grad=True)
    losses = loss_of(student, [1.0, -0.1, -200.0])
    assert losses.tolist() == [80.0, 10.0, 10.0]
    (gradient,) = torch.autograd.grad(losses.sum(), student)
    assert gradient.tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [0.3, 0.5, 0.99, 1.5, 2.0, math.inf, -math.inf, math.nan])
def test_what_is_neither_log_prob_nor_sentinel(value: float) -> None:
    with pytest.raises(BatchError, match="at response token 1 of its micro-batch"):
        written_by_teacher(torch.tensor([-0.1, value, 1.0]))


def test_rounding_above_zero_is_a_log_prob() -> None:
    assert written_by_teacher(torch.tensor([1e-7, 0.0, 1.0])).tolist() == [False, False, True]
