"""Denoising steps: worked values, the exact recursion of a Gaussian, ends of the schedule, log-probs, divergences."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import (
    Transition,
    cps_log_prob,
    log_prob,
    make_schedule,
    transition,
    transition_kl,
    velocity_error,
)
from stacx_plugin_diffusion.objectives.transitions import DYNAMICS

SECOND_LEVEL = 0.9375
ETAS = {"ode": 0.0, "flow_sde": 0.7, "dance_sde": 0.3, "cps": 0.7}


def take(step, dynamics, velocity=None, **options):
    options = {"eta": ETAS[dynamics], "sigma_max": SECOND_LEVEL, **options}
    velocity = step.velocity if velocity is None else velocity
    return transition(step.x, velocity, step.sigma, step.sigma_next, dynamics=dynamics, **options)


@pytest.mark.parametrize(
    ("dynamics", "mean", "std", "sample"),
    [
        ("ode", [0.075, -0.7, 0.975, -0.125], 0, [0.075, -0.7, 0.975, -0.125]),
        (
            "flow_sde",
            [-0.053625, -0.4795, 0.674875, -0.253625],
            0.606218,
            [0.249484, -1.085718, 0.826429, 0.958811],
        ),
        ("dance_sde", [0.067125, -0.6865, 0.956625, -0.132875], 0.15, [0.142125, -0.8365, 0.994125, 0.167125]),
        ("cps", [-0.068327, -0.454296, 0.640569, -0.268327], 0.445503, [0.154424, -0.899799, 0.751945, 0.622679]),
    ],
)
def test_worked_values_of_a_step(step, dynamics, mean, std, sample):
    taken = take(step, dynamics)
    assert taken.mean[0].tolist() == pytest.approx(mean, **step.close)
    assert taken.std.item() == pytest.approx(std, **step.close)
    assert taken.h.item() == 0.25
    assert taken.sample(step.noise)[0].tolist() == pytest.approx(sample, **step.close)
    assert taken.stochastic.item() is (dynamics != "ode")
    assert {t.dtype for t in taken} == {step.x.dtype}


def test_worked_values_of_the_diffusion_coefficient(step):
    assert take(step, "flow_sde").g.item() == pytest.approx(1.212436, **step.close)
    assert take(step, "dance_sde").g.item() == pytest.approx(0.3, **step.close)


def test_worked_values_of_log_probs(step):
    def value(dynamics, **options):
        taken = take(step, dynamics)
        return log_prob(taken.sample(step.noise), taken, **options).item()

    assert value("flow_sde") == pytest.approx(-1.082485, **step.close)
    assert value("flow_sde", reduce="sum") == pytest.approx(-4.329940, **step.close)
    assert value("dance_sde") == pytest.approx(0.314119, **step.close)
    assert value("cps") == pytest.approx(-0.774450, **step.close)
    assert value("flow_sde", normalizer=False) == pytest.approx(-(0.25 + 1 + 0.0625 + 4) / 8, **step.close)
    published = take(step, "cps")
    assert cps_log_prob(published.sample(step.noise), published).item() == pytest.approx(-0.263597, **step.close)


def test_worked_values_of_the_first_step_of_flow_sde(step):
    step.sigma, step.sigma_next = torch.ones_like(step.sigma), torch.full_like(step.sigma, SECOND_LEVEL)
    taken = take(step, "flow_sde")
    assert taken.g.item() == pytest.approx(2.8, **step.close)
    assert taken.std.item() == pytest.approx(0.7, **step.close)
    assert taken.mean[0].tolist() == pytest.approx([0.17025, -0.579, 0.79925, 0.06975], **step.close)


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_last_step_is_that_of_the_ode(step, dynamics):
    step.sigma_next = torch.zeros_like(step.sigma)
    taken, ode = take(step, dynamics), take(step, "ode")
    assert torch.equal(taken.mean, ode.mean)
    assert taken.std.item() == 0
    assert not taken.stochastic.any()
    assert torch.equal(taken.sample(step.noise), ode.mean)


def test_a_schedule_of_one_step_has_no_noise():
    sigmas = make_schedule(1)
    one = torch.ones(1, 2)
    taken = transition(one, one, sigmas[:1], sigmas[1:], dynamics="flow_sde", eta=0.7, sigma_max=float(sigmas[1]))
    assert taken.mean.tolist() == [[0.0, 0.0]]
    assert taken.std.item() == 0


def test_steps_of_one_batch_may_differ(step):
    """A deterministic item beside a stochastic one, each as if it were alone."""
    x, v = step.x.repeat(2, 1), step.velocity.repeat(2, 1)
    sigma, sigma_next = step.sigma.repeat(2), torch.cat([step.sigma_next, torch.zeros_like(step.sigma)])
    both = transition(x, v, sigma, sigma_next, dynamics="flow_sde", eta=0.7, sigma_max=SECOND_LEVEL)
    assert both.stochastic.tolist() == [True, False]
    alone = take(step, "flow_sde")
    assert torch.equal(both.mean[:1], alone.mean)
    assert log_prob(x, both)[0] == log_prob(step.x, alone)


def gaussian_after(steps, shift, dynamics):
    """Mean and standard deviation at the end of sampling, exactly, where data are N(0.5, 0.3^2) per dimension.

    For such data the true velocity is a line in x, so each step maps a Gaussian to a Gaussian.
    """
    m, c = 0.5, 0.3
    sigmas = make_schedule(steps, shift).double()
    mean, variance = 0.0, 1.0
    probes = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for sigma, sigma_next in pairwise(sigmas):
        s = sigma.item()
        slope = (s - (1 - s) * c**2) / ((1 - s) ** 2 * c**2 + s**2)
        velocity = slope * probes - slope * (1 - s) * m - m
        levels = sigma.repeat(2), sigma_next.repeat(2)
        taken = transition(probes, velocity, *levels, dynamics=dynamics, eta=ETAS[dynamics], sigma_max=sigmas[1].item())
        at_0, at_1 = taken.mean.flatten().tolist()
        mean = at_0 + (at_1 - at_0) * mean
        variance = (at_1 - at_0) ** 2 * variance + taken.std[0].item() ** 2
    return mean, math.sqrt(variance)


@pytest.mark.parametrize(
    ("steps", "shift", "dynamics", "std"),
    [
        (10, 1, "ode", 0.246865),
        (10, 1, "flow_sde", 0.281616),
        (10, 1, "dance_sde", 0.257986),
        (10, 1, "cps", 0.213224),
        (10, 3, "ode", 0.185174),
        (10, 3, "flow_sde", 0.221499),
        (10, 3, "dance_sde", 0.192303),
        (10, 3, "cps", 0.171436),
        (1000, 1, "ode", 0.299423),
        (1000, 1, "flow_sde", 0.300319),
        (1000, 1, "dance_sde", 0.299572),
        (1000, 1, "cps", 0.254308),
    ],
)
def test_the_distribution_that_sampling_ends_with(steps, shift, dynamics, std):
    """The SDEs converge to the data, which no wrong sign of their drift does; CPS does not."""
    found_mean, found_std = gaussian_after(steps, shift, dynamics)
    assert found_mean == pytest.approx(0.5, abs=5e-7)
    assert found_std == pytest.approx(std, abs=1e-6)
    if steps == 1000:
        assert (abs(found_std - 0.3) < 1e-3) is (dynamics != "cps")


def test_a_step_without_eta_is_that_of_the_ode(step):
    for dynamics in DYNAMICS:
        taken = take(step, dynamics, eta=0.0)
        torch.testing.assert_close(taken.mean, take(step, "ode").mean)
        assert taken.std.item() == 0


def test_cps_with_all_its_noise_forgets_the_noise_that_was(step):
    taken = take(step, "cps", eta=1.0)
    assert taken.std.item() == 0.5
    x0 = step.x - 0.75 * step.velocity
    torch.testing.assert_close(taken.mean, x0 / 2)


def test_deterministic_items_have_no_log_prob_and_no_gradient(step):
    velocity = step.velocity.clone().requires_grad_()
    taken, other = take(step, "ode", velocity), take(step, "ode", step.velocity + 1)
    values = [log_prob(step.x, taken), cps_log_prob(step.x, taken), transition_kl(taken, other)]
    assert [value.item() for value in values] == [0.0, 0.0, 0.0]
    sum(values).sum().backward()
    assert velocity.grad.tolist() == [[0.0] * 4]


def test_the_gradient_of_a_log_prob_is_through_the_mean_alone(step):
    velocity = step.velocity.clone().requires_grad_()
    sampled = take(step, "dance_sde", velocity).sample(step.noise)
    taken = take(step, "dance_sde", velocity)
    mean = taken.mean.detach().clone().requires_grad_()
    log_prob(sampled, taken._replace(mean=mean)).sum().backward()
    # (x' - mean) / std^2 / D = z / (std D)
    torch.testing.assert_close(mean.grad, step.noise / (0.15 * 4))
    whole = torch.autograd.grad(log_prob(sampled, taken).sum(), velocity, retain_graph=True)[0]
    through_mean = torch.autograd.grad(taken.mean, velocity, mean.grad)[0]
    torch.testing.assert_close(whole, through_mean)


def test_a_masked_log_prob_is_that_of_the_other_dimensions(step):
    mask = torch.tensor([[True, False, True, False]])
    taken = take(step, "flow_sde")
    sample = taken.sample(step.noise)
    kept = taken._replace(mean=taken.mean[:, ::2])
    for reduce in ("mean", "sum"):
        torch.testing.assert_close(log_prob(sample, taken, reduce, mask=mask), log_prob(sample[:, ::2], kept, reduce))


@pytest.mark.parametrize("dynamics", ["flow_sde", "dance_sde"])
@given(
    sigma=st.floats(0.05, 1),
    part=st.floats(0.01, 0.99),
    eta=st.floats(0.05, 1.5),
    changes=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
)
def test_the_divergence_is_a_multiple_of_the_velocities_distance(dynamics, sigma, part, eta, changes):
    levels = torch.tensor([sigma], dtype=torch.float64), torch.tensor([sigma * part], dtype=torch.float64)
    x, v = torch.tensor([[0.3, -0.8, 1.1]], dtype=torch.float64), torch.tensor([[0.9, -0.4, 0.5]], dtype=torch.float64)
    v_ref = v + torch.tensor([changes], dtype=torch.float64)
    new, ref = (transition(x, u, *levels, dynamics=dynamics, eta=eta, sigma_max=0.9) for u in (v, v_ref))
    c = new.h / 2 * (1 / new.g + new.g * (1 - sigma) / (2 * sigma)) ** 2
    torch.testing.assert_close(transition_kl(new, ref), c * velocity_error(v, v_ref), rtol=1e-9, atol=1e-12)


def test_worked_values_of_divergences(step):
    v_ref = step.velocity - torch.tensor([[0.1, 0.05, -0.2, 0.0]], dtype=step.x.dtype)
    new, ref = take(step, "flow_sde"), take(step, "flow_sde", v_ref)
    assert transition_kl(new, ref).item() == pytest.approx(0.001730, abs=5e-7)
    assert (new.h * transition_kl(new, ref)).item() == pytest.approx(0.000432, abs=5e-7)
    assert velocity_error(step.velocity, v_ref).item() == pytest.approx(0.013125, **step.close)
    assert (new.mean - ref.mean).square().mean().item() == pytest.approx(0.001272, abs=5e-7)


def test_a_reference_gets_no_gradient(step):
    velocity, v_ref = step.velocity.clone().requires_grad_(), (step.velocity + 0.1).requires_grad_()
    transition_kl(take(step, "flow_sde", velocity), take(step, "flow_sde", v_ref)).sum().backward()
    assert velocity.grad.abs().min() > 0
    assert v_ref.grad is None


@pytest.mark.parametrize("dynamics", ["flow_sde", "dance_sde", "cps"])
def test_a_replay_of_all_pairs_at_once_has_the_log_probs_of_sampling(dynamics):
    """Samples in lockstep through the schedule, then every (sample, step) pair as one batch."""
    generator = torch.Generator().manual_seed(2)
    sigmas, count = make_schedule(6, 3.0), 3
    options = {"dynamics": dynamics, "eta": ETAS[dynamics], "sigma_max": float(sigmas[1])}
    x = torch.randn(count, 1, 4, 4, generator=generator)
    states, velocities, old = [], [], []
    for sigma, sigma_next in pairwise(sigmas):
        velocity = torch.randn(x.shape, generator=generator)
        taken = transition(x, velocity, sigma.repeat(count), sigma_next.repeat(count), **options)
        states.append(x)
        velocities.append(velocity)
        x = taken.sample(torch.randn(x.shape, generator=generator))
        old.append(log_prob(x, taken))
    index = torch.arange(6).repeat_interleave(count)
    replayed = transition(torch.cat(states), torch.cat(velocities), sigmas[index], sigmas[index + 1], **options)
    new = log_prob(torch.cat([*states[1:], x]), replayed)
    assert (new - torch.cat(old)).abs().max() < 1e-6
    assert replayed.stochastic.tolist() == [True] * 5 * count + [False] * count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dynamics": "sde"}, "choose one of ode, flow_sde, dance_sde, cps"),
        ({"eta": -0.1}, "eta must be at least 0"),
        ({"eta": math.nan}, "eta must be"),
        ({"dynamics": "cps", "eta": 1.2}, "at most 1 for cps"),
        ({"dynamics": "flow_sde", "sigma_max": None}, "needs sigma_max"),
        ({"dynamics": "flow_sde", "sigma_max": 1.0}, r"sigma_max in \[0, 1\)"),
        ({"sigma": torch.tensor([0.0]), "sigma_next": torch.tensor([0.0])}, r"from sigma in \(0, 1\]"),
        ({"sigma": torch.tensor([0.5]), "sigma_next": torch.tensor([0.5])}, r"down to sigma_next in \[0, sigma\)"),
        ({"sigma": torch.tensor([1.5])}, "a step goes"),
        ({"sigma_next": torch.tensor([torch.nan])}, "a step goes"),
        ({"sigma": torch.tensor([0.5, 0.5])}, "one shape"),
        ({"velocity": torch.ones(1, 1)}, "one shape"),
        ({"x": torch.ones(2, 3), "velocity": torch.ones(2, 3)}, "one value per item"),
    ],
)
def test_bad_input_is_refused(change, message):
    given_values = {
        "x": torch.ones(1, 3),
        "velocity": torch.ones(1, 3),
        "sigma": torch.tensor([0.75]),
        "sigma_next": torch.tensor([0.25]),
        "dynamics": "dance_sde",
        "eta": 0.3,
    }
    with pytest.raises(ValueError, match=message):
        transition(**{**given_values, **change})


def test_log_probs_and_divergences_refuse_what_does_not_fit(step):
    taken = take(step, "dance_sde")
    with pytest.raises(ValueError, match="choose one of mean, sum"):
        log_prob(step.x, taken, reduce="none")
    with pytest.raises(ValueError, match="one shape"):
        log_prob(step.x[:, :1], taken)
    with pytest.raises(ValueError, match="one shape"):
        taken.sample(step.noise[:, :1])
    with pytest.raises(ValueError, match="one schedule, one dynamics and one eta"):
        transition_kl(taken, take(step, "dance_sde", eta=0.4))


def test_a_transition_can_be_made_by_hand():
    taken = Transition(torch.zeros(1, 2), torch.tensor([2.0]), torch.tensor([0.25]))
    assert taken.g.item() == 4
    assert log_prob(torch.zeros(1, 2), taken).item() == pytest.approx(-math.log(2) - math.log(2 * math.pi) / 2)
