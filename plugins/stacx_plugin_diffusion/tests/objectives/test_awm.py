"""Advantage-weighted matching: worked values, its gradient, and what bounds it."""

from __future__ import annotations

import pytest
import torch

from stacx_plugin_diffusion.objectives import (
    awm_log_prob,
    clipped_terms,
    velocity_error,
    velocity_target,
)
from stacx_plugin_diffusion.objectives.awm import AWM_WEIGHTS


def both(flow, weight):
    return [awm_log_prob(v, flow.x0, flow.noise, flow.sigma, weight) for v in (flow.velocity, flow.old_velocity)]


def test_worked_values(flow):
    new, old = both(flow, "uniform")
    assert new.tolist() == pytest.approx([-0.028125, -0.1675], **flow.close)
    assert old.tolist() == pytest.approx([-0.01875, -0.0425], **flow.close)
    terms, seen = clipped_terms(new, old, torch.tensor([1.0, -1.0]), 0.2)
    assert seen["ratio"].tolist() == pytest.approx([0.990669, 0.882497], **flow.close)
    assert terms.mean().item() == pytest.approx(-0.054086, **flow.close)


def test_worked_values_of_other_weights(flow):
    terms, seen = clipped_terms(*both(flow, "sigma"), torch.tensor([1.0, -1.0]), 0.2)
    assert seen["ratio"].tolist() == pytest.approx([0.997659, 0.904837], **flow.close)
    assert terms.mean().item() == pytest.approx(-0.046411, **flow.close)
    new, old = both(flow, "ghuber")
    assert new.tolist() == pytest.approx([-0.406356, -2.037050], **flow.close)
    assert (new - old).exp().tolist() == pytest.approx([0.961292, 0.551987], **flow.close)
    assert both(flow, "sigma_squared")[0].tolist() == pytest.approx([-0.028125 / 16, -0.1675 * 0.64], **flow.close)


@pytest.mark.parametrize(("weight", "power"), [("uniform", 0), ("sigma", 1), ("sigma_squared", 2)])
def test_on_policy_the_gradient_is_that_of_the_weighted_error(weight, power):
    """A w(sigma) d error: with a negative advantage, upwards."""
    generator = torch.Generator().manual_seed(1)
    velocity, x0, noise = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.4, 0.7, 1.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    velocity.requires_grad_()
    new = awm_log_prob(velocity, x0, noise, sigma, weight)
    found = torch.autograd.grad(clipped_terms(new, new, advantages, 0.1)[0].sum(), velocity)[0]
    error = velocity_error(velocity, velocity_target(x0, noise))
    expected = torch.autograd.grad((advantages * sigma**power * error).sum(), velocity)[0]
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("weight", AWM_WEIGHTS)
def test_a_perfect_velocity_has_log_prob_0_and_finite_gradients(weight, flow):
    velocity = velocity_target(flow.x0, flow.noise).requires_grad_()
    value = awm_log_prob(velocity, flow.x0, flow.noise, flow.sigma, weight)
    assert value.tolist() == [0.0, 0.0]
    value.sum().backward()
    assert not velocity.grad.any()


def test_bad_input_is_refused(flow):
    with pytest.raises(ValueError, match="choose one of uniform, sigma, sigma_squared, ghuber"):
        both(flow, "t")
    with pytest.raises(ValueError, match="one shape"):
        awm_log_prob(flow.velocity, flow.x0, flow.noise, flow.sigma[:1])
