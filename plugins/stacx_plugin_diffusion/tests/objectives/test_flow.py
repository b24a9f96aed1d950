"""The path between data and noise, weights and the regression: worked values, inverses, masks, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stacx_plugin_diffusion.objectives import (
    flow_matching_terms,
    interpolate,
    loss_weight,
    noise_from_velocity,
    rwr_weights,
    velocity_error,
    velocity_target,
    x0_from_velocity,
)

LATENTS = arrays.arrays("float64", (2, 3), elements=st.floats(-4, 4))


def numbers(tensor):
    return tensor.flatten().tolist()


def test_worked_values_of_the_path(flow):
    x = interpolate(flow.x0, flow.noise, flow.sigma)
    assert numbers(x) == pytest.approx([0.625, -0.625, 0.0625, -0.25, -0.6, 0.1, 0.7, 0.8], **flow.close)
    target = velocity_target(flow.x0, flow.noise)
    assert numbers(target) == pytest.approx([0.5, 1.5, -0.75, -1, -2, -0.5, 1.5, -1.5], **flow.close)
    x0 = x0_from_velocity(x, flow.velocity, flow.sigma)
    assert numbers(x0) == pytest.approx([0.525, -0.925, 0.2375, -0.025, 0.6, 0.58, -0.18, 1.6], **flow.close)
    noise = noise_from_velocity(x, flow.velocity, flow.sigma)
    assert numbers(noise) == pytest.approx([0.925, 0.275, -0.4625, -0.925, -0.9, -0.02, 0.92, 0.6], **flow.close)
    assert {t.dtype for t in (x, target, x0, noise)} == {flow.x0.dtype}


@pytest.mark.parametrize(
    ("weight", "slope", "expected"),
    [("none", 1.0, 0.0978125), ("linear", 3.0, 0.309359), ("cosmap", 1.0, 0.092731), ("sigma_sqrt", 1.0, 0.355859)],
)
def test_worked_values_of_the_loss(flow, weight, slope, expected):
    terms, seen = flow_matching_terms(flow.velocity, flow.x0, flow.noise, flow.sigma, weight=weight, slope=slope)
    assert terms.mean().item() == pytest.approx(expected, **flow.close)
    assert numbers(seen["error"]) == pytest.approx([0.028125, 0.1675], **flow.close)


def test_worked_values_of_the_weights(flow):
    assert numbers(loss_weight(flow.sigma, "cosmap")) == pytest.approx([1.018592, 0.936206], **flow.close)
    assert numbers(loss_weight(flow.sigma, "sigma_sqrt")) == pytest.approx([16, 1.5625], **flow.close)
    assert loss_weight(torch.zeros(1), "sigma_sqrt").item() == pytest.approx(1e8)


def test_the_bell_is_that_of_a_table_of_a_thousand_levels():
    levels = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    bell = torch.exp(-2 * (levels - 0.5) ** 2)
    bell = bell - math.exp(-0.5)
    weight = loss_weight(levels, "bell")
    torch.testing.assert_close(weight, bell / bell.mean(), rtol=2e-6, atol=0)
    assert weight.mean().item() == pytest.approx(1, abs=1e-6)
    assert loss_weight(torch.tensor([0.0, 1.0]), "bell").tolist() == pytest.approx([0, 0], abs=1e-6)


def test_reward_weights():
    weights = rwr_weights(torch.tensor([0.2, 0.8], dtype=torch.float64), 0.5)
    assert numbers(weights) == pytest.approx([0.462950, 1.537050], abs=5e-7)
    assert numbers(rwr_weights(torch.tensor([1000.0, 0.0]), 0.1)) == [2.0, 0.0]


def test_a_weighted_sample_counts_by_its_weight(flow):
    weight = torch.tensor([3.0, 0.0])
    terms, seen = flow_matching_terms(flow.velocity, flow.x0, flow.noise, flow.sigma, sample_weight=weight)
    assert numbers(terms) == pytest.approx([0.084375, 0], **flow.close)
    assert numbers(seen["error"]) == pytest.approx([0.028125, 0.1675], **flow.close)


@given(LATENTS, LATENTS, st.floats(0, 1))
def test_prediction_from_the_target_gives_back_data_and_noise(x0, noise, level):
    x0, noise, sigma = torch.from_numpy(x0), torch.from_numpy(noise), torch.full((2,), level, dtype=torch.float64)
    x, v = interpolate(x0, noise, sigma), velocity_target(x0, noise)
    torch.testing.assert_close(x0_from_velocity(x, v, sigma), x0, rtol=0, atol=1e-14)
    torch.testing.assert_close(noise_from_velocity(x, v, sigma), noise, rtol=0, atol=1e-14)


def test_the_ends_of_the_path_are_data_and_noise(flow):
    ends = torch.tensor([0.0, 1.0])
    x = interpolate(flow.x0, flow.noise, ends)
    assert torch.equal(x[0], flow.x0[0])
    assert torch.equal(x[1], flow.noise[1])


def test_half_precision_is_upcast():
    x0 = torch.full((1, 64), 0.1, dtype=torch.bfloat16)
    assert interpolate(x0, x0, torch.tensor([0.3])).dtype == torch.float32
    assert velocity_error(x0, x0).dtype == torch.float32


@pytest.mark.parametrize("rows", [[[1, 0, 1]], [[1, 1, 0], [0, 0, 1]]])
def test_masked_dimensions_count_nowhere_even_if_not_a_number(rows):
    mask = torch.tensor(rows)
    full = mask.bool().expand(2, 3)
    velocity = torch.arange(1.0, 7.0).reshape(2, 3).masked_fill(~full, torch.nan).requires_grad_()
    target = torch.zeros(2, 3)
    error = velocity_error(velocity, target, mask)
    expected = [row[kept].square().mean().item() for row, kept in zip(velocity.detach(), full, strict=True)]
    assert error.tolist() == pytest.approx(expected)
    error.sum().backward()
    assert velocity.grad.isfinite().all()
    assert not velocity.grad[~full].any()


def test_an_item_that_is_all_masked_has_error_0():
    mask = torch.tensor([[0, 0], [1, 1]])
    assert velocity_error(torch.ones(2, 2), torch.zeros(2, 2), mask).tolist() == [0.0, 1.0]


def test_no_term_depends_on_who_shares_its_batch(flow):
    together, _ = flow_matching_terms(flow.velocity, flow.x0, flow.noise, flow.sigma, weight="cosmap")
    alone = [
        flow_matching_terms(*(t[i : i + 1] for t in (flow.velocity, flow.x0, flow.noise, flow.sigma)), weight="cosmap")
        for i in range(2)
    ]
    assert torch.equal(together, torch.cat([terms for terms, _ in alone]))


def test_the_target_carries_no_gradient(flow):
    x0 = flow.x0.clone().requires_grad_()
    velocity = flow.velocity.clone().requires_grad_()
    terms, _ = flow_matching_terms(velocity, x0, flow.noise, flow.sigma)
    terms.sum().backward()
    assert x0.grad is None
    torch.testing.assert_close(velocity.grad, (flow.velocity - (flow.noise - flow.x0)) / 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loss_weight(torch.ones(1), "sqrt"), "choose one of none, linear, sigma_sqrt, cosmap, bell"),
        (lambda: interpolate(torch.ones(2, 3), torch.ones(2, 1), torch.ones(2)), r"x0 \[2, 3\], noise \[2, 1\]"),
        (lambda: interpolate(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1)), "one value per item"),
        (lambda: interpolate(torch.ones(2), torch.ones(2), torch.ones(2)), "one value per item"),
        (lambda: velocity_error(torch.ones(2, 3), torch.ones(2, 1)), "one shape"),
        (lambda: velocity_error(torch.ones(2), torch.ones(2)), "an axis beside the batch"),
        (lambda: velocity_error(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)), "as many axes"),
        (lambda: velocity_error(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 2)), "as many axes"),
        (lambda: flow_matching_terms(*[torch.ones(2, 3)] * 3, torch.ones(1)), r"item \[2\], sigma \[1\]"),
        (
            lambda: flow_matching_terms(*[torch.ones(2, 3)] * 3, torch.ones(2), sample_weight=torch.ones(2, 1)),
            "sample_weight",
        ),
        (lambda: rwr_weights(torch.ones(2), 0.0), "must be positive"),
        (lambda: rwr_weights(torch.tensor([1.0, torch.nan]), 1.0), "must be finite"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
