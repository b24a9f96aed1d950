"""DiffusionNFT: worked values, what its gradient is, decays of the old policy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import (
    flow_matching_terms,
    nft_terms,
    old_policy_decay,
    optimality,
    velocity_error,
    velocity_target,
)


def loss(flow, **options):
    optimal = torch.tensor([0.7, 0.0], dtype=flow.x0.dtype)
    return nft_terms(flow.velocity, flow.old_velocity, flow.x0, flow.noise, flow.sigma, optimal, scale=5.0, **options)


def test_worked_values(flow):
    terms, seen = loss(flow, beta=1.0)
    assert terms.mean().item() == pytest.approx(0.336364, **flow.close)
    assert seen["positive"].tolist() == pytest.approx([0.051136, 0.357333], **flow.close)
    assert seen["negative"].tolist() == pytest.approx([0.0625, 0.08], **flow.close)
    assert seen["old_distance"].mean().item() == pytest.approx(0.030313, **flow.close)


def test_worked_values_of_a_small_beta(flow):
    terms, seen = loss(flow, beta=0.1)
    assert terms.mean().item() == pytest.approx(5.312818, abs=2e-6)
    assert seen["positive"].tolist() == pytest.approx([0.037693, 0.209026], **flow.close)
    assert seen["negative"].tolist() == pytest.approx([0.037925, 0.17475], **flow.close)


def test_worked_values_without_the_adaptive_weight(flow):
    assert loss(flow, adaptive=False)[0].mean().item() == pytest.approx(0.016980, **flow.close)


def test_worked_values_of_the_weights(flow):
    """The mean absolute errors that the adaptive loss divides by."""
    adaptive, plain = (loss(flow, adaptive=a)[1] for a in (True, False))
    for name, expected in (("positive", [0.034375, 0.3]), ("negative", [0.040625, 0.06])):
        assert (plain[name] / adaptive[name]).tolist() == pytest.approx(expected, **flow.close)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", [0.7, 0.0, 1.0, 0.5]),
        ("positive_only", [0.7, 0.5, 1.0, 0.5]),
        ("negative_only", [0.5, 0.0, 0.5, 0.5]),
        ("one_only", [0.6, 0.5, 0.6, 0.5]),
        ("binary", [0.6, 0.4, 0.6, 0.5]),
    ],
)
def test_worked_values_of_optimality(mode, expected):
    assert optimality(torch.tensor([2.0, -5.0, 9.0, 0.0]), 5.0, mode).tolist() == pytest.approx(expected)


@pytest.fixture
def batch():
    """``gradient(velocity, optimal, **options)`` and the old velocity, data, noise and levels that it takes."""
    generator = torch.Generator().manual_seed(5)
    old, x0, noise = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    sigma = torch.tensor([0.1, 0.4, 0.7, 1.0], dtype=torch.float64)

    def gradient(velocity, optimal, **options):
        velocity = velocity.clone().requires_grad_()
        terms, _ = nft_terms(velocity, old, x0, noise, sigma, optimal, **options)
        return torch.autograd.grad(terms.sum(), velocity)[0]

    return old, x0, noise, sigma, gradient


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_at_the_old_policy_an_even_sample_has_no_gradient(batch, beta):
    old, *_, gradient = batch
    found = gradient(old, torch.full((4,), 0.5, dtype=torch.float64), beta=beta)
    assert found.abs().max() < 1e-15


def test_at_the_old_policy_the_gradient_knows_no_beta_and_is_linear_in_optimality(batch):
    old, *_, gradient = batch
    good = gradient(old, torch.ones(4, dtype=torch.float64))
    assert good.abs().min() > 0
    for beta in (0.1, 0.5, 2.0):
        for r in (0.0, 0.3, 0.5, 0.9):
            found = gradient(old, torch.full((4,), r, dtype=torch.float64), beta=beta)
            torch.testing.assert_close(found, (2 * r - 1) * good, rtol=1e-12, atol=1e-15)


def test_good_samples_are_fitted_as_data_are(batch):
    """r = 1 and beta = 1: the flow-matching loss on x0, times sigma^2 and over the weight."""
    old, x0, noise, sigma, gradient = batch
    velocity = (old + 0.1).requires_grad_()
    terms, _ = flow_matching_terms(velocity, x0, noise, sigma)
    error = sigma[:, None] * (velocity - velocity_target(x0, noise)).detach()
    scaled = (terms * sigma.square() / error.abs().mean(1)).sum()
    expected = torch.autograd.grad(scaled, velocity)[0]
    torch.testing.assert_close(gradient(velocity.detach(), torch.ones(4, dtype=torch.float64)), expected)


def test_nothing_but_the_policy_gets_a_gradient(batch):
    old, x0, noise, sigma, _ = batch
    leaves = [t.clone().requires_grad_() for t in (old + 0.1, old, x0, noise)]
    optimal = torch.full((4,), 0.7, dtype=torch.float64, requires_grad=True)
    terms, seen = nft_terms(*leaves, sigma, optimal)
    terms.sum().backward()
    assert leaves[0].grad.abs().min() > 0
    assert all(leaf.grad is None for leaf in (*leaves[1:], optimal))
    assert not any(value.requires_grad for value in seen.values())


def test_the_end_at_data_says_nothing_and_the_end_at_noise_does(flow):
    flow.sigma = torch.tensor([0.0, 1.0])
    terms, _ = loss(flow)
    assert terms[0] == 0
    assert terms[1] > 0


def test_a_mask_is_as_if_the_dimensions_were_not_there(flow):
    mask = torch.tensor([[True, True, False, True]])
    arguments = (flow.velocity, flow.old_velocity, flow.x0, flow.noise)
    optimal = torch.tensor([0.7, 0.2])
    masked, _ = nft_terms(*arguments, flow.sigma, optimal, mask=mask)
    cut, _ = nft_terms(*(t[:, [0, 1, 3]] for t in arguments), flow.sigma, optimal)
    torch.testing.assert_close(masked, cut)
    assert velocity_error(flow.velocity, flow.old_velocity, mask).shape == (2,)


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("copy", (0, 10, 1000), (0, 0, 0)),
        ("linear", (0, 10, 100, 600), (0, 0.01, 0.1, 0.5)),
        ("delayed", (0, 75, 100, 500), (0, 0, 0.1875, 0.999)),
    ],
)
def test_worked_values_of_the_decay(kind, steps, expected):
    assert [old_policy_decay(kind, step) for step in steps] == pytest.approx(expected, abs=1e-12)


@given(st.sampled_from(["copy", "linear", "delayed"]), st.integers(0, 10_000))
def test_the_old_policy_never_stands_still(kind, step):
    assert 0 <= old_policy_decay(kind, step) <= old_policy_decay(kind, step + 1) < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimality(torch.ones(1), 0.0), "must be positive"),
        (lambda: optimality(torch.ones(1), 1.0, "best"), "choose one of all, positive_only"),
        (lambda: old_policy_decay("cosine", 1), "choose one of copy, linear, delayed"),
        (lambda: old_policy_decay("copy", -1), "counted from 0"),
        (lambda: nft_terms(*[torch.ones(2, 3)] * 4, torch.ones(2), torch.ones(2), beta=0.0), "beta"),
        (lambda: nft_terms(*[torch.ones(2, 3)] * 4, torch.ones(2), torch.ones(2, 1)), "optimal"),
        (lambda: nft_terms(torch.ones(2, 1), *[torch.ones(2, 3)] * 3, torch.ones(2), torch.ones(2)), "one shape"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
