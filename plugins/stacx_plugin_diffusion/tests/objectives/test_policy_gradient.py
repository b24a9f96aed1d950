"""The clipped policy gradient and GRPO-Guard: worked values, gradients, what clips when."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import clipped_terms, guard_terms, log_prob, transition

CHANGE = [[0.02, -0.01, 0.03, 0.01]]


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def old_and_new(step, change=CHANGE, noise=None):
    """The step as the old policy took it, as the new one would, and both log-probs of where it led."""
    old, new = (
        transition(step.x, v, step.sigma, step.sigma_next, dynamics="flow_sde", eta=0.7, sigma_max=0.9375)
        for v in (step.velocity, step.velocity + torch.tensor(change, dtype=step.x.dtype))
    )
    sample = old.sample(step.noise if noise is None else noise)
    return old, new, log_prob(sample, old), log_prob(sample, new)


@pytest.mark.parametrize(
    ("advantage", "clip", "expected"),
    [(1.5, 1e-3, -1.490809), (1.5, 0.2, -1.490809), (-1.5, 1e-3, 1.498500), (-1.5, 0.2, 1.490809)],
)
def test_worked_values(step, advantage, clip, expected):
    _, _, old, new = old_and_new(step)
    assert new.item() == pytest.approx(-1.088631, **step.close)
    terms, seen = clipped_terms(new, old, torch.tensor([advantage]), clip)
    assert seen["ratio"].item() == pytest.approx(0.993872, **step.close)
    assert terms.item() == pytest.approx(expected, **step.close)


def test_worked_values_of_a_batch_of_steps():
    ratio = doubles(1.0005, 0.98, 1.3, 0.7)
    advantages = doubles(2, 2, -1, -1)
    terms, seen = clipped_terms(ratio.log(), torch.zeros(4), advantages, 0.1)
    assert terms.tolist() == pytest.approx([-2.001, -1.96, 1.3, 0.9], abs=5e-7)
    assert terms.mean().item() == pytest.approx(-0.440250, abs=5e-7)
    assert seen["above"].tolist() == [0, 0, 1, 0]
    assert seen["below"].tolist() == [0, 0, 0, 1]
    assert seen["neg_log_ratio"].tolist() == pytest.approx((-ratio.log()).tolist())


def test_advantages_are_clamped_first():
    terms, _ = clipped_terms(torch.zeros(2), torch.zeros(2), torch.tensor([9.0, -9.0]), 0.1, advantage_clip=5.0)
    assert terms.tolist() == [-5.0, 5.0]


def test_the_bounds_may_differ_or_be_absent():
    log_ratio, up = doubles(0.5, 0.7, 1.5, 1.3).log(), doubles(1, -1, 1, 1)
    assert clipped_terms(log_ratio, torch.zeros(4), up, 0.2, 0.4)[0].tolist() == pytest.approx([-0.5, 0.8, -1.4, -1.3])
    free, seen = clipped_terms(log_ratio, torch.zeros(4), up, None)
    assert free.tolist() == pytest.approx([-0.5, 0.7, -1.5, -1.3])
    assert not seen["above"].any()
    assert not seen["below"].any()


def test_a_clipped_pair_has_no_gradient():
    log_prob_ = doubles(1.3, 0.7, 1.3, 0.7).log().requires_grad_()
    clipped_terms(log_prob_, torch.zeros(4), doubles(1, -1, -1, 1), 0.1)[0].sum().backward()
    assert log_prob_.grad.tolist() == pytest.approx([0, 0, 1.3, -0.7])


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-5, 5)), min_size=1, max_size=8))
def test_at_ratio_one_the_gradient_is_that_of_the_policy_gradient(pairs):
    """d loss = -A d log p, per pair, and nothing flows into the old log-prob."""
    new = doubles(*[p for p, _ in pairs]).requires_grad_()
    old = new.detach().clone().requires_grad_()
    advantages = doubles(*[a for _, a in pairs])
    terms, _ = clipped_terms(new, old, advantages, 1e-3)
    terms.sum().backward()
    torch.testing.assert_close(new.grad, -advantages, rtol=1e-15, atol=1e-300)
    assert old.grad is None
    whole = terms.detach()
    parts = [clipped_terms(new[i : i + 1], old[i : i + 1], advantages[i : i + 1], 1e-3)[0] for i in range(len(pairs))]
    assert torch.equal(whole, torch.cat(parts).detach())


def test_no_ratio_overflows():
    terms, _ = clipped_terms(torch.tensor([500.0, -500.0]), torch.zeros(2), torch.tensor([-1.0, -1.0]), None)
    assert terms.isfinite().all()


def test_worked_values_of_the_guard(step):
    old, new, old_log_prob, new_log_prob = old_and_new(step)
    up, seen = guard_terms(new_log_prob, old_log_prob, new, old, torch.tensor([1.5]), 2e-6)
    assert seen["ratio"].item() == pytest.approx(0.996311, **step.close)
    assert up.item() == pytest.approx(-5.977864, abs=5e-6)
    down, _ = guard_terms(new_log_prob, old_log_prob, new, old, torch.tensor([-1.5]), 2e-6)
    assert down.item() == pytest.approx(5.999988, **step.close)


@given(
    st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4),
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
)
def test_the_guards_log_ratio_is_linear_in_the_change(change, noise):
    """It is the mean of z (mean - mean_old): what is left has no bias."""

    class Step:
        x, velocity = doubles([0.3, -0.8, 1.1, 0.2]), doubles([0.9, -0.4, 0.5, 1.3])
        sigma, sigma_next = doubles(0.75), doubles(0.5)

    z = doubles(noise)
    old, new, old_log_prob, new_log_prob = old_and_new(Step, [change], z)
    _, seen = guard_terms(new_log_prob, old_log_prob, new, old, doubles(1.0), None)
    expected = (z * (new.mean - old.mean)).mean()
    assert -seen["neg_log_ratio"].item() == pytest.approx(expected.item(), abs=1e-9)


def test_the_guard_leaves_deterministic_items_alone(step):
    velocity = step.velocity.clone().requires_grad_()
    new, old = (
        transition(step.x, v, step.sigma, torch.zeros_like(step.sigma), dynamics="dance_sde", eta=0.3)
        for v in (velocity, step.velocity + 1)
    )
    terms, _ = guard_terms(log_prob(step.x, new), log_prob(step.x, old), new, old, torch.ones(1), 0.1)
    assert terms.item() == 0
    terms.sum().backward()
    assert velocity.grad.tolist() == [[0.0] * 4]


def test_shapes_that_would_broadcast_are_refused(step):
    one, column = torch.zeros(2), torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"advantages \[2, 1\]"):
        clipped_terms(one, one, column, 0.1)
    old, new, old_log_prob, new_log_prob = old_and_new(step)
    with pytest.raises(ValueError, match=r"advantages \[2\]"):
        guard_terms(new_log_prob, old_log_prob, new, old, one, 0.1)
