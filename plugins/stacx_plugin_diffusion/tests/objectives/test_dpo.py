"""Flow-DPO: worked values, the first step, sharing of noise, pairs from rewards."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import best_and_worst, flow_dpo_terms, interpolate, paired


@pytest.fixture
def pair(flow):
    """One pair: the two items of data with the noise of the first, at level 0.4."""
    flow.noise = flow.noise[:1]
    flow.sigma = torch.tensor([0.4], dtype=flow.x0.dtype)
    flow.velocity = torch.tensor([[0.45, 1.4, -0.7, -0.9], [0.1, 0.2, 0.05, -2.9]], dtype=flow.x0.dtype)
    flow.reference = torch.tensor([[0.4, 1.2, -0.6, -0.8], [0.05, 0.1, 0, -3.05]], dtype=flow.x0.dtype)
    return flow


def loss(pair, **options):
    options = {"beta": 100.0, **options}
    return flow_dpo_terms(pair.velocity, pair.reference, pair.x0, pair.noise, pair.sigma, **options)


def test_worked_values(pair):
    x = interpolate(pair.x0, paired(pair.noise), paired(pair.sigma))
    assert x.flatten().tolist() == pytest.approx([0.7, -0.4, -0.05, -0.4, 1, 0.5, -0.5, 0.8], **pair.close)
    terms, seen = loss(pair)
    assert terms.item() == pytest.approx(0.094413, **pair.close)
    assert seen["chosen_error"].item() == pytest.approx(0.00625, **pair.close)
    assert seen["rejected_error"].item() == pytest.approx(0.015625, **pair.close)
    assert seen["chosen_reward"].item() == pytest.approx(1.71875, abs=2e-6)
    assert seen["rejected_reward"].item() == pytest.approx(-0.59375, abs=2e-6)
    assert (seen["chosen_reward"] - seen["rejected_reward"]).item() == pytest.approx(2.3125, abs=2e-6)
    assert seen["accuracy"].item() == 1


def test_worked_values_of_other_betas(pair):
    terms, seen = loss(pair, beta=2000.0)
    assert terms.item() == pytest.approx(0, abs=5e-7)
    assert (seen["chosen_reward"] - seen["rejected_reward"]).item() == pytest.approx(46.25, abs=5e-5)
    assert loss(pair, beta_scale="data")[0].item() == pytest.approx(0.361137, **pair.close)


def test_supervision_is_added_for_the_chosen(pair):
    assert loss(pair, sft_weight=2.0)[0].item() == pytest.approx(0.094413 + 0.0125, abs=1e-6)


def test_the_first_step_has_loss_log_2(pair):
    pair.reference = pair.velocity
    terms, seen = loss(pair)
    assert terms.item() == pytest.approx(math.log(2), rel=1e-7)
    assert seen["accuracy"].item() == 0.5


def test_the_gradient_pulls_the_chosen_error_down_and_the_rejected_up(pair):
    """At the first step, -beta / 4 on the rejected error and beta / 4 on the chosen one."""
    velocity = pair.velocity.clone().requires_grad_()
    pair.reference = pair.velocity
    terms, _ = flow_dpo_terms(velocity, pair.reference, pair.x0, pair.noise, pair.sigma, beta=100.0)
    terms.sum().backward()
    error = pair.velocity - (pair.noise - pair.x0)
    sign = torch.tensor([[1.0], [-1.0]], dtype=error.dtype)
    torch.testing.assert_close(velocity.grad, sign * 25 * error / 2)


@given(st.integers(1, 4), st.integers(0, 50))
def test_a_pair_does_not_depend_on_its_neighbours_and_means_come_last(pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    velocity, reference, x0 = torch.randn(3, 2 * pairs, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(pairs, 5, generator=generator, dtype=torch.float64)
    sigma = torch.rand(pairs, generator=generator, dtype=torch.float64)
    whole, _ = flow_dpo_terms(velocity, reference, x0, noise, sigma, beta=10.0)
    for i in range(pairs):
        half = [i, pairs + i]
        part, _ = flow_dpo_terms(
            velocity[half], reference[half], x0[half], noise[i : i + 1], sigma[i : i + 1], beta=10.0
        )
        torch.testing.assert_close(part, whole[i : i + 1], rtol=1e-12, atol=0)


def test_an_impossible_margin_stays_finite(pair):
    pair.velocity = pair.velocity + 100
    assert loss(pair, beta=5000.0)[0].isfinite().all()


def test_pairs_are_the_best_and_the_worst_of_each_group():
    rewards = torch.tensor([0.5, 0.9, 0.1, 0.9, 2.0, 3.0, 7.0, 4.0, 4.0])
    groups = torch.tensor([1, 1, 1, 1, 0, 0, 9, 5, 5])
    chosen, rejected = best_and_worst(rewards, groups)
    assert chosen.tolist() == [5, 1]
    assert rejected.tolist() == [4, 2]
    assert chosen.dtype == torch.int64


def test_uncounted_samples_make_no_pair():
    rewards, groups = torch.tensor([1.0, torch.nan, 0.0]), torch.zeros(3, dtype=torch.int64)
    chosen, rejected = best_and_worst(rewards, groups, torch.tensor([True, False, True]))
    assert (chosen.tolist(), rejected.tolist()) == ([0], [2])
    none, _ = best_and_worst(rewards, groups, torch.tensor([True, False, False]))
    assert none.shape == (0,)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_a_chosen_sample_is_better_and_of_the_same_group(batch):
    rewards, groups = torch.tensor([float(r) for r, _ in batch]), torch.tensor([g for _, g in batch], dtype=torch.int64)
    chosen, rejected = best_and_worst(rewards, groups)
    assert (rewards[chosen] > rewards[rejected]).all()
    assert torch.equal(groups[chosen], groups[rejected])
    differing = {g for g in groups.tolist() if len(set(rewards[groups == g].tolist())) > 1}
    assert groups[chosen].tolist() == sorted(differing)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: flow_dpo_terms(*[torch.ones(3, 2)] * 3, torch.ones(1, 2), torch.ones(1), beta=1.0),
            "of 1 pairs, got 3",
        ),
        (
            lambda: flow_dpo_terms(
                *[torch.ones(2, 2)] * 3, torch.ones(1, 2), torch.ones(1), beta=1.0, beta_scale="sigma"
            ),
            "choose one of constant, data",
        ),
        (lambda: flow_dpo_terms(*[torch.ones(2, 2)] * 3, torch.ones(1, 2), torch.ones(2), beta=1.0), "sigma"),
        (
            lambda: flow_dpo_terms(
                torch.ones(2, 2), torch.ones(1, 2), torch.ones(2, 2), torch.ones(1, 2), torch.ones(1), beta=1.0
            ),
            "reference_velocity",
        ),
        (lambda: best_and_worst(torch.ones(2), torch.ones(1)), "one shape"),
        (lambda: best_and_worst(torch.tensor([torch.nan]), torch.ones(1)), "must be finite"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
