"""Schedules, the ODE, densities and weights against those of diffusers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from stacx_plugin_diffusion.objectives import (
    SigmaDensity,
    loss_weight,
    make_schedule,
    shift_sigma,
    transition,
)

REASON = "diffusers is not installed: pip install stacx-plugin-diffusion[diffusers]"
schedulers = pytest.importorskip("diffusers.schedulers", reason=REASON)
training_utils = pytest.importorskip("diffusers.training_utils", reason=REASON)


def scheduler(**options):
    return schedulers.FlowMatchEulerDiscreteScheduler(**options)


def velocity_of(x, sigma):
    return torch.sin(3 * x) - sigma * x


def ours(x, sigmas):
    for sigma, sigma_next in pairwise(sigmas):
        levels = sigma.repeat(len(x)), sigma_next.repeat(len(x))
        x = transition(x, velocity_of(x, sigma), *levels, dynamics="ode").mean
    return x


def theirs(x, euler):
    for i, timestep in enumerate(euler.timesteps):
        x = euler.step(velocity_of(x, euler.sigmas[i]), timestep, x).prev_sample
    return x


@pytest.mark.parametrize("steps", [1, 4, 10])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_ode_is_theirs_when_given_our_levels(steps, shift):
    sigmas = make_schedule(steps, shift)
    euler = scheduler()
    euler.set_timesteps(sigmas=sigmas[:-1].tolist())
    assert torch.equal(euler.sigmas, sigmas)
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x, sigmas), theirs(x, euler), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_scheduler_that_shifts_makes_our_levels_of_unshifted_ones(shift):
    euler = scheduler(shift=shift)
    euler.set_timesteps(sigmas=[1 - i / 10 for i in range(10)])
    torch.testing.assert_close(euler.sigmas, make_schedule(10, shift), rtol=1e-6, atol=0)


def test_a_dynamic_shift_is_ours():
    euler = scheduler(use_dynamic_shifting=True)
    euler.set_timesteps(sigmas=[1 - i / 10 for i in range(10)], mu=1.15)
    torch.testing.assert_close(euler.sigmas, make_schedule(10, math.exp(1.15)), rtol=1e-6, atol=0)


def test_our_levels_are_shifted_once():
    """Asked for a number of steps alone, diffusers shifts the lowest level twice and takes a tiny last step but one."""
    euler = scheduler(shift=3.0)
    euler.set_timesteps(10)
    assert make_schedule(10, 3.0)[-4:].tolist() == pytest.approx([0.5625, 0.428571, 0.25, 0], abs=5e-7)
    assert euler.sigmas[-3:].tolist() == pytest.approx([0.278049, 0.008929, 0], abs=5e-7)


@pytest.mark.parametrize("kind", ["sigma_sqrt", "cosmap", "none"])
def test_weights_are_theirs(kind):
    sigmas = torch.linspace(0.01, 1, 50)
    expected = training_utils.compute_loss_weighting_for_sd3(kind, sigmas)
    torch.testing.assert_close(loss_weight(sigmas, kind), expected)


@pytest.mark.parametrize(
    ("kind", "options"), [("uniform", {}), ("logit_normal", {"mean": 0.3, "std": 1.2}), ("mode", {"scale": 1.29})]
)
def test_densities_are_theirs(kind, options):
    count = 50_000
    theirs_drawn = training_utils.compute_density_for_timestep_sampling(
        kind,
        count,
        logit_mean=options.get("mean"),
        logit_std=options.get("std"),
        mode_scale=options.get("scale"),
        generator=torch.Generator().manual_seed(0),
    )
    drawn = SigmaDensity(kind, **options, shift=3.0).sample(count, torch.Generator().manual_seed(1))
    points = torch.linspace(0.05, 0.95, 19)
    torch.testing.assert_close(
        drawn.quantile(points), shift_sigma(theirs_drawn, 3.0).quantile(points), rtol=0, atol=0.012
    )
