"""Shifts and densities of noise levels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import SigmaDensity, dynamic_shift, shift_sigma
from stacx_plugin_diffusion.objectives.noise_levels import mode_quantile

SHIFTS = st.floats(0.05, 20)
DRAWS = 200_000


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def draws(**options):
    return SigmaDensity(**options).sample(DRAWS, torch.Generator().manual_seed(0))


def test_worked_values_of_the_constant_shift():
    shifted = shift_sigma(doubles(0, 0.1, 0.25, 0.5, 0.75, 0.9, 1), 3)
    assert shifted.tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 0.9, 0.964286, 1], abs=5e-7)
    after_sigmoid = shift_sigma(torch.sigmoid(doubles(-1, 0, 0.5, 2)), 3)
    assert after_sigmoid.tolist() == pytest.approx([0.524633, 0.75, 0.831824, 0.956835], abs=5e-7)


def test_worked_values_of_the_dynamic_shift():
    assert dynamic_shift(256) == pytest.approx(math.exp(0.5))
    assert dynamic_shift(4096) == pytest.approx(math.exp(1.15))
    shifted = shift_sigma(doubles(0.1, 0.25, 0.5, 0.75, 0.9), dynamic_shift(4096))
    assert shifted.tolist() == pytest.approx([0.259758, 0.512844, 0.759511, 0.904531, 0.966014], abs=5e-7)


def test_worked_values_of_mode():
    levels = mode_quantile(doubles(0.1, 0.5, 0.9), 1.29)
    assert levels.tolist() == pytest.approx([0.802569, 0.5, 0.197431], abs=5e-7)


@given(SHIFTS, st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_a_shift_is_monotone_and_keeps_the_ends(shift, levels):
    shifted = shift_sigma(doubles(*sorted(levels)), shift)
    assert (shifted.diff() >= 0).all()
    assert shift_sigma(doubles(0, 1), shift).tolist() == [0, 1]
    assert shifted.max() <= 1


@given(SHIFTS, SHIFTS, st.floats(0, 1))
def test_shifts_multiply(first, second, level):
    twice = shift_sigma(shift_sigma(doubles(level), first), second)
    assert twice.item() == pytest.approx(shift_sigma(doubles(level), first * second).item(), abs=1e-12)


@given(st.floats(0.05, 0.95))
def test_a_shift_above_one_moves_towards_noise(level):
    assert shift_sigma(doubles(level), 3) > level > shift_sigma(doubles(level), 1 / 3)


def test_the_density_of_logit_normal():
    """Its worked values at 1/4 and 1/2, 1.163652 and 1.595769, from the share of draws near them."""
    levels = draws(kind="logit_normal")
    width = 0.02
    for at, density in ((0.25, 1.163652), (0.5, 1.595769)):
        share = ((levels - at).abs() < width).double().mean().item() / (2 * width)
        assert share == pytest.approx(density, abs=0.04)
    assert (levels < 0.25).double().mean().item() == pytest.approx(0.135963, abs=0.003)


@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({"kind": "uniform"}, 0.5),
        ({"kind": "logit_normal", "mean": 1.0, "std": 0.5}, 0.720581),
        ({"kind": "mode"}, 0.5),
        ({"kind": "beta", "alpha": 2.0, "beta": 1.0}, 2 / 3),
        ({"kind": "uniform", "shift": 3.0}, 0.676041),
    ],
)
def test_means_of_the_densities(options, mean):
    """Of Beta(a, b) it is a / (a + b); of a uniform level shifted by k, ``k (k - 1 - log k) / (k - 1)^2``."""
    levels = draws(**options)
    assert levels.dtype == torch.float32
    assert levels.double().mean().item() == pytest.approx(mean, abs=0.003)
    assert 0 <= levels.min() < levels.max() <= 1


def test_bounds_hold_after_the_shift():
    levels = draws(kind="uniform", shift=5.0, minimum=0.02, maximum=0.98)
    assert levels.min() >= 0.02
    assert levels.max() == torch.tensor(0.98)


def test_one_generator_gives_one_sample():
    first, second = (SigmaDensity("beta").sample(4, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert SigmaDensity().sample(0, torch.Generator()).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SigmaDensity("normal"), "choose one of uniform, logit_normal, mode, beta"),
        (lambda: SigmaDensity(std=0.0), "std"),
        (lambda: SigmaDensity("mode", scale=1.8), "scale"),
        (lambda: SigmaDensity("beta", alpha=0.0), "alpha and beta"),
        (lambda: SigmaDensity(minimum=0.5, maximum=0.4), "ordered"),
        (lambda: SigmaDensity(shift=0.0), "positive and finite"),
        (lambda: shift_sigma(torch.ones(1), math.inf), "positive and finite"),
        (lambda: dynamic_shift(1, (4, 0.5), (4, 1.0)), "two different lengths"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
