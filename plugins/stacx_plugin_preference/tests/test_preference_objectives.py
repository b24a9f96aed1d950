"""The losses by themselves: worked values, limits, laws, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stacx_plugin_preference.objectives import (
    bradley_terry_loss,
    hinge_loss,
    ipo_loss,
    kto_loss,
    orpo_loss,
    preferred,
    robust_loss,
    sigmoid_loss,
    simpo_loss,
)

DIFFERENCES = st.floats(-50, 50, allow_nan=False)
AVERAGES = st.floats(-30, -0.01, allow_nan=False)


def number(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([value], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda d: sigmoid_loss(d(0.05), 0.1), 0.69065),
        (lambda d: sigmoid_loss(d(0.05), 0.1, 0.1), 0.69115),
        (lambda d: robust_loss(d(0.05), 0.1, 0.1), 0.690025),
        (lambda d: hinge_loss(d(0.05), 0.1), 0.995),
        (lambda d: ipo_loss(d(-2 / 3 - -2.05 / 3 - (-2.7 / 3 - -2.7 / 3)), 0.1), 24.833611),
        (lambda d: ipo_loss(d(0.05), 0.1), 24.5025),
        (lambda d: sigmoid_loss(d(2.0), 0.5), 0.313262),
        (lambda d: hinge_loss(d(2.0), 0.5), 0.0),
        (lambda d: ipo_loss(d(2.0), 0.5), 1.0),
        (lambda d: sigmoid_loss(d(2.0), 0.5, 0.2), 0.513262),
        (lambda d: robust_loss(d(2.0), 0.5, 0.2), -0.020072),
        (lambda d: simpo_loss(d(-2 / 3 - -0.9), 2.0, 1.0), 0.994956),
        (lambda d: orpo_loss(d(-2 / 3), d(-0.9), 0.1), 0.716702),
        (lambda d: kto_loss(d(0.05), torch.tensor([True]), d(0.02), 0.1), 0.49925),
        (lambda d: kto_loss(d(0.0), torch.tensor([False]), d(0.02), 0.1), 0.4995),
        (lambda d: bradley_terry_loss(d(1.2), d(0.4)), 0.371101),
        (lambda d: bradley_terry_loss(d(1.2), d(0.4), 0.5), 0.554355),
        (lambda d: bradley_terry_loss(d(1.2), d(0.4), center=0.1), 0.371101 + 0.1 * 1.6**2),
    ],
)
def test_worked_values(
    loss: Callable[[Callable[[float], Tensor]], Tensor], expected: float, dtype: torch.dtype
) -> None:
    value = loss(lambda x: number(x, dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected, abs=2e-6, rel=2e-7)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda d: sigmoid_loss(d, 0.1), 0.420055),
        (lambda d: sigmoid_loss(d, 0.1, 0.1), 0.485055),
        (lambda d: sigmoid_loss(-d, 0.1), 1.070055),
        (lambda d: hinge_loss(d, 0.1), 0.35),
        (lambda d: ipo_loss(d, 0.1), 2.25),
    ],
)
def test_a_pair_with_margin_six_and_a_half(loss: Callable[[Tensor], Tensor], expected: float) -> None:
    """Chosen -6 against -7.5, rejected -20 against -15: delta is 1.5 + 5."""
    assert loss(number(6.5)).item() == pytest.approx(expected, abs=2e-6)


def test_ipo_compares_means_per_token() -> None:
    """Chosen 1.5 over 3 tokens, rejected -5 over 5: (0.5 + 1 - 5)^2."""
    assert ipo_loss(number(1.5 / 3 + 5 / 5), 0.1).item() == pytest.approx(12.25)


def test_before_the_first_update_nothing_is_preferred() -> None:
    zero = number(0.0)
    assert sigmoid_loss(zero, 0.1).item() == pytest.approx(0.693147, abs=2e-6)
    assert hinge_loss(zero, 0.1).item() == 1.0
    assert ipo_loss(zero, 0.1).item() == pytest.approx(25.0)
    assert preferred(zero).item() == 0.5


def test_the_gradient_of_a_chosen_log_prob() -> None:
    """-beta sigmoid(-beta delta)."""
    delta = torch.tensor([0.05], requires_grad=True)
    sigmoid_loss(delta, 0.1).sum().backward()
    assert delta.grad is not None
    assert delta.grad.item() == pytest.approx(-0.049875, abs=2e-6)


def test_weights_of_kto_scale_either_kind() -> None:
    ratio, desirable, zero = torch.tensor([0.3, 0.3]), torch.tensor([True, False]), torch.zeros(2)
    even = kto_loss(ratio, desirable, zero, 0.1)
    assert torch.equal(kto_loss(ratio, desirable, zero, 0.1, 3.0, 0.5), even * torch.tensor([3.0, 0.5]))


def test_odds_keep_their_digits_at_both_ends_and_a_certain_response_is_finite() -> None:
    """Probability 1/2 has log odds 0; almost 1 has -log(1 - p); a tiny p has log p."""
    for average, odds in ((math.log(0.5), 0.0), (-1e-4, -1e-4 - math.log(1e-4 - 0.5e-8)), (-60.0, -60.0)):
        half = number(math.log(0.5))
        value = orpo_loss(half, number(average), 1.0) + half
        assert value.item() == pytest.approx(math.log1p(math.exp(odds)), rel=1e-5)
    certain = torch.zeros(1, requires_grad=True)
    orpo_loss(certain, number(-1.0), 0.1).sum().backward()
    assert certain.grad is not None
    assert torch.isfinite(certain.grad).all()


def test_the_mean_of_robust_over_flipped_labels_is_the_loss_of_the_true_ones() -> None:
    delta = torch.linspace(-20, 20, 9, dtype=torch.float64)
    flipped = 0.8 * robust_loss(delta, 0.3, 0.2) + 0.2 * robust_loss(-delta, 0.3, 0.2)
    torch.testing.assert_close(flipped, sigmoid_loss(delta, 0.3))


@given(DIFFERENCES, st.floats(0.01, 2), st.floats(0, 0.49))
def test_swapping_a_pair_turns_its_margin_round(delta: float, beta: float, smoothing: float) -> None:
    """Two losses of opposite sign of delta differ by (1 - 2e) beta delta; accuracies add up to 1."""
    plain, swapped = number(delta, torch.float64), number(-delta, torch.float64)
    difference = sigmoid_loss(swapped, beta, smoothing) - sigmoid_loss(plain, beta, smoothing)
    assert difference.item() == pytest.approx((1 - 2 * smoothing) * beta * delta, abs=1e-9)
    robust = robust_loss(swapped, beta, smoothing) - robust_loss(plain, beta, smoothing)
    assert robust.item() == pytest.approx(beta * delta / (1 - 2 * smoothing), abs=1e-9)
    assert (preferred(plain) + preferred(swapped)).item() == 1.0


@given(DIFFERENCES, DIFFERENCES)
def test_extreme_values_stay_finite(a: float, b: float) -> None:
    chosen, rejected = torch.tensor([a * 1e3], requires_grad=True), number(b * 1e3)
    losses = (
        sigmoid_loss(chosen - rejected, 0.1, 0.1),
        robust_loss(chosen - rejected, 0.1, 0.1),
        simpo_loss(chosen - rejected, 2.0, 1.0),
        orpo_loss(-chosen.abs(), -rejected.abs(), 0.1),
        kto_loss(chosen, torch.tensor([True]), rejected, 0.1),
        bradley_terry_loss(chosen, rejected),
    )
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss.sum(), chosen, retain_graph=True)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(gradient).all()


@given(AVERAGES, AVERAGES)
def test_gradients_away_from_the_kinks(a: float, b: float) -> None:
    chosen = torch.tensor([a], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([b], dtype=torch.float64, requires_grad=True)
    losses: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda c, r: sigmoid_loss(c - r, 0.5, 0.1),
        lambda c, r: robust_loss(c - r, 0.5, 0.1),
        lambda c, r: ipo_loss(c - r, 0.5),
        lambda c, r: simpo_loss(c - r, 2.0, 1.0),
        lambda c, r: orpo_loss(c, r, 0.7),
        lambda c, r: kto_loss(torch.cat([c, r]), torch.tensor([True, False]), torch.full((2,), 0.2).double(), 0.5),
        lambda c, r: bradley_terry_loss(c, r, 0.5, 0.01),
    ]
    if abs(0.5 * (a - b) - 1) > 1e-3:
        losses.append(lambda c, r: hinge_loss(c - r, 0.5))
    for loss in losses:
        assert torch.autograd.gradcheck(loss, (chosen, rejected))
