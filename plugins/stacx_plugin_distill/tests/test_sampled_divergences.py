"""Estimators from one sampled token: worked values, and whose gradient each one has."""

from __future__ import annotations

import pytest
import torch

from stacx_core.objectives import sum_of_sample_mean
from stacx_plugin_distill.objectives import SAMPLED_MODES, sampled_divergence

LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
STUDENT = [-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1]
TEACHER = [-0.4, -1.5, -0.2, -0.7, -1.6, -0.9, -1.3]

P = [0.5, 0.3, 0.2]
Q = [0.2, 0.5, 0.3]


def near(*values: float) -> object:
    return pytest.approx(list(values), abs=2e-6)


def test_k3_of_two_samples() -> None:
    student = torch.tensor(STUDENT, requires_grad=True)
    loss, clamped = sampled_divergence(student, torch.tensor(TEACHER))
    assert loss.tolist() == near(0.005171, 0.040818, 0.005171, 0.021403, 0.091825, 0.018731, 0.018731)
    assert sum_of_sample_mean(loss, LENGTHS, MASKS).item() == pytest.approx(0.036675, abs=2e-6)
    loss.sum().backward()
    assert student.grad is not None
    assert student.grad.tolist() == near(-0.105171, 0.259182, -0.105171, -0.221403, -0.491825, 0.181269, 0.181269)
    assert not clamped.any()


def test_reverse_kl_of_the_same_samples_is_a_tenth() -> None:
    difference = torch.tensor(STUDENT) - torch.tensor(TEACHER)
    assert sum_of_sample_mean(difference, LENGTHS, MASKS).item() == pytest.approx(0.1, abs=2e-6)


def test_k3_is_never_negative_and_pulls_towards_what_the_teacher_favours() -> None:
    student = torch.tensor([-1.2, -0.3, -1.0], requires_grad=True)
    loss, _ = sampled_divergence(student, torch.tensor([-0.7, -2.3, -1.0]))
    assert loss.tolist() == near(0.148721, 1.135335, 0.0)
    loss.sum().backward()
    assert student.grad is not None
    assert student.grad.tolist() == near(-0.648721, 0.864665, 0.0)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("k3_sample", [0.3, -0.2, -0.1]),
        ("k2", [0.346243, -0.220389, -0.125854]),
        ("k3_is", [0.346243, -0.220389, -0.125854]),
    ],
)
def test_expected_gradients_by_enumeration(mode: str, expected: list[float]) -> None:
    """The gradients of KL(q || p), then twice of KL(p || q), with respect to the three logits."""
    logits = torch.tensor(P).log().requires_grad_()
    loss, _ = sampled_divergence(logits.log_softmax(-1), torch.tensor(Q).log(), mode)
    (torch.tensor(P) * loss).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == near(*expected)


@pytest.mark.parametrize("mode", ["k3_sample", "k3_is"])
def test_expected_value_is_the_reverse_kl(mode: str) -> None:
    loss, _ = sampled_divergence(torch.tensor(P).log(), torch.tensor(Q).log(), mode)
    assert (torch.tensor(P) * loss).sum().item() == pytest.approx(0.223805, abs=2e-6)


def test_importance_ratio_of_an_updated_student() -> None:
    """p_old = 0.25 and p = 0.5 give the weight 2, and the gradient 2 d."""
    student = torch.tensor([0.5]).log().requires_grad_()
    teacher = torch.tensor([0.2]).log()
    loss, _ = sampled_divergence(student, teacher, "k3_is", torch.tensor([0.25]).log())
    loss.sum().backward()
    assert loss.item() == pytest.approx(2 * (0.4 - 1 + 0.916291), abs=2e-6)
    assert student.grad is not None
    assert student.grad.item() == pytest.approx(2 * 0.916291, abs=2e-6)


def test_where_the_clamp_holds_there_is_no_gradient() -> None:
    student = torch.tensor([-8.0, -30.0, -0.1, -1.0], requires_grad=True)
    loss, clamped = sampled_divergence(student, torch.tensor([-2.0, -0.1, -30.0, -1.0]))
    assert loss.tolist() == [10.0, 10.0, 10.0, 0.0]
    assert clamped.tolist() == [1.0, 1.0, 1.0, 0.0]
    loss.sum().backward()
    assert student.grad is not None
    assert student.grad.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", SAMPLED_MODES)
def test_nothing_to_learn_where_both_agree(mode: str) -> None:
    student = torch.tensor(STUDENT, requires_grad=True)
    loss, _ = sampled_divergence(student, torch.tensor(STUDENT), mode)
    loss.sum().backward()
    assert student.grad is not None
    assert not loss.any()
    assert not student.grad.any()


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ValueError, match="'k4' is unknown; choose one of k3_sample, k2, k3_is"):
        sampled_divergence(torch.zeros(1), torch.zeros(1), "k4")
