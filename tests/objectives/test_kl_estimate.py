"""KL estimators: worked values, clamps, and the gradients they have in expectation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stacx_core.objectives import KL_KINDS, kl_estimate, sum_of_sample_mean

NEW = torch.tensor([-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1])
OLD = torch.tensor([-0.6, -1.0, -0.35, -0.8, -2.0, -1.0, -1.05])
REF = torch.tensor([-0.55, -1.1, -0.4, -1.0, -1.9, -0.8, -0.9])
LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
K3 = [0.001229, 0.005171, 0.004837, 0.004837, 0.005171, 0.004837, 0.021403]


@pytest.mark.parametrize(
    ("kind", "per_token", "summed"),
    [
        ("k1", [0.05, -0.1, 0.1, 0.1, -0.1, 0.1, -0.2], 0.016667),
        ("k2", [0.00125, 0.005, 0.005, 0.005, 0.005, 0.005, 0.02], 0.01375),
        ("k3", K3, 0.014105),
        ("low_var_kl", K3, 0.014105),
    ],
)
def test_worked_values(kind: str, per_token: list[float], summed: float) -> None:
    estimate = kl_estimate(NEW, REF, kind)
    assert estimate.tolist() == pytest.approx(per_token, abs=2e-6)
    assert sum_of_sample_mean(estimate, LENGTHS, MASKS).item() == pytest.approx(summed, abs=2e-6)


def test_worked_values_of_the_unbiased_form() -> None:
    estimate = kl_estimate(NEW, REF, "k3", old_log_probs=OLD)
    expected = [0.001359, 0.004234, 0.005085, 0.004377, 0.005171, 0.00653, 0.020359]
    assert estimate.tolist() == pytest.approx(expected, abs=2e-6)
    assert sum_of_sample_mean(estimate, LENGTHS, MASKS).item() == pytest.approx(0.013981, abs=2e-6)


def test_only_low_var_kl_is_clamped() -> None:
    policy, reference = torch.tensor([-8.0]), torch.tensor([-2.0])
    assert kl_estimate(policy, reference, "low_var_kl").item() == 10.0
    assert kl_estimate(policy, reference, "k3").item() == pytest.approx(396.428793, rel=1e-6)


def test_low_var_kl_is_finite_where_the_exponential_overflows() -> None:
    policy = torch.tensor([-200.0], requires_grad=True)
    estimate = kl_estimate(policy, torch.zeros(1), "low_var_kl", old_log_probs=torch.tensor([-300.0]))
    estimate.sum().backward()
    assert estimate.item() == 10.0
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


def test_k3_is_never_negative_and_pulls_towards_the_teacher() -> None:
    student = torch.tensor([-1.2, -0.3, -1.0], requires_grad=True)
    teacher = torch.tensor([-0.7, -2.3, -1.0])
    assert kl_estimate(student, teacher, "k1").tolist() == pytest.approx([-0.5, 2.0, 0.0], abs=2e-6)
    k3 = kl_estimate(student, teacher, "k3")
    k3.sum().backward()
    assert k3.tolist() == pytest.approx([0.148721, 1.135335, 0.0], abs=2e-6)
    assert k3.mean().item() == pytest.approx(0.428019, abs=2e-6)
    assert student.grad is not None
    assert student.grad.tolist() == pytest.approx([-0.648721, 0.864665, 0.0], abs=2e-6)


def test_unknown_kind_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="k1, k2, k3, low_var_kl"):
        kl_estimate(NEW, REF, "k4")


POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
FORWARD_GRADIENT = [0.3, -0.2, -0.1]
REVERSE_GRADIENT = [0.346243, -0.220389, -0.125854]


def expected_over_vocabulary(kind: str, unbiased: bool) -> tuple[float, list[float]]:
    """Mean and expected gradient with respect to the logits, over all tokens, each held fixed as a sample."""
    logits = POLICY.log().requires_grad_()
    log_probs = logits.log_softmax(-1)
    old = log_probs.detach() if unbiased else None
    mean = (POLICY * kl_estimate(log_probs, REFERENCE.log(), kind, old)).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    return mean.item(), gradient.tolist()


def full_kl(forward: bool) -> tuple[float, list[float]]:
    logits = POLICY.log().requires_grad_()
    log_p, log_q = logits.log_softmax(-1), REFERENCE.log()
    terms: Tensor = REFERENCE * (log_q - log_p) if forward else log_p.exp() * (log_p - log_q)
    (gradient,) = torch.autograd.grad(terms.sum(), logits)
    return terms.sum().item(), gradient.tolist()


def test_the_two_divergences() -> None:
    assert full_kl(forward=True)[0] == pytest.approx(0.193794, abs=1e-6)
    assert full_kl(forward=True)[1] == pytest.approx(FORWARD_GRADIENT, abs=1e-6)
    assert full_kl(forward=False)[0] == pytest.approx(0.223805, abs=1e-6)
    assert full_kl(forward=False)[1] == pytest.approx(REVERSE_GRADIENT, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "unbiased", "gradient"),
    [
        ("k1", False, [0.0, 0.0, 0.0]),
        ("k2", False, REVERSE_GRADIENT),
        ("k3", False, FORWARD_GRADIENT),
        ("low_var_kl", False, FORWARD_GRADIENT),
        ("k3", True, REVERSE_GRADIENT),
        ("low_var_kl", True, REVERSE_GRADIENT),
    ],
)
def test_expected_gradient(kind: str, unbiased: bool, gradient: list[float]) -> None:
    assert expected_over_vocabulary(kind, unbiased)[1] == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k3", "low_var_kl"])
def test_the_mean_is_the_reverse_divergence(kind: str) -> None:
    assert expected_over_vocabulary(kind, unbiased=False)[0] == pytest.approx(0.223805, abs=1e-6)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_gradients_match_finite_differences(kind: str, unbiased: bool) -> None:
    policy = NEW.double().requires_grad_()
    old = OLD.double() if unbiased else None
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, REF.double(), kind, old), (policy,))
