"""Distillation from velocities, through transitions, and by distribution matching."""

from __future__ import annotations

import pytest
import torch

from stacx_plugin_diffusion.objectives import (
    dmd_critic_terms,
    dmd_generator_terms,
    interpolate,
    merge_cfg,
    transition,
    transition_kl,
    velocity_distillation_terms,
    x0_from_velocity,
)

SIGMAS = torch.tensor([1.0, 0.9375, 0.75, 0.5, 0.0])


@pytest.fixture
def teacher(step):
    """The teacher's velocity at the state of ``step``, with guidance of scale 4."""
    conditional, unconditional = (
        torch.tensor([row], dtype=step.x.dtype) for row in ([1, -0.5, 0.6, 1.2], [0.8, -0.3, 0.4, 1])
    )
    return merge_cfg(conditional, unconditional, 4)


def through_transitions(step, teacher, index=2):
    levels = SIGMAS[index : index + 1], SIGMAS[index + 1 : index + 2]
    settings = {"dynamics": "flow_sde", "eta": 0.7, "sigma_max": float(SIGMAS[1])}
    student, teachers = (transition(step.x.detach(), v, *levels, **settings) for v in (step.velocity, teacher))
    return transition_kl(student, teachers)


def test_worked_values(step, teacher):
    terms, seen = velocity_distillation_terms(step.velocity, teacher, step.sigma)
    assert terms.item() == pytest.approx(0.43, **step.close)
    weighted, _ = velocity_distillation_terms(step.velocity, teacher, step.sigma, weight="linear", slope=2.0)
    assert weighted.item() == pytest.approx(0.43 * 2.5, **step.close)
    assert seen["error"].item() == pytest.approx(0.43, **step.close)
    assert through_transitions(step, teacher).item() == pytest.approx(0.056676, **step.close)


def test_only_the_student_gets_a_gradient(step, teacher):
    step.velocity.requires_grad_()
    step.x.requires_grad_()
    teacher.requires_grad_()
    through_transitions(step, teacher).sum().backward()
    velocity_distillation_terms(step.velocity, teacher, step.sigma)[0].sum().backward()
    assert step.velocity.grad.abs().min() > 0
    assert teacher.grad is None
    assert step.x.grad is None


def test_the_last_step_teaches_nothing_through_its_transition(step, teacher):
    assert through_transitions(step, teacher, index=3).item() == 0


@pytest.fixture(params=[torch.float32, torch.float64], ids=["fp32", "fp64"])
def dmd(request):
    """Generated latents, noise, level, and the velocities of teacher and critic."""
    rows = [
        [[0.2, -0.6, 0.9, 0.1]],
        [[1.0, -1.0, 0.5, 0.0]],
        [0.6],
        [[0.9, -0.5, -0.2, -0.3]],
        [[0.7, -0.2, -0.5, 0.1]],
    ]
    return [torch.tensor(row, dtype=request.param) for row in rows]


def test_worked_values_of_distribution_matching(dmd):
    generated, noise, sigma, real, fake = dmd
    # The inputs in fp32 are off by 3e-8, which a division by the normalizer magnifies.
    close = {"abs": 5e-7 if noise.dtype == torch.float64 else 4e-6}
    x = interpolate(generated, noise, sigma)
    assert x[0].tolist() == pytest.approx([0.68, -0.84, 0.66, 0.04], **close)
    assert x0_from_velocity(x, real, sigma)[0].tolist() == pytest.approx([0.14, -0.54, 0.78, 0.22], **close)
    assert x0_from_velocity(x, fake, sigma)[0].tolist() == pytest.approx([0.26, -0.72, 0.96, -0.02], **close)
    generated.requires_grad_()
    terms, seen = dmd_generator_terms(*dmd)
    assert terms.dtype == noise.dtype
    assert seen["normalizer"].item() == pytest.approx(0.09, **close)
    assert terms.item() == pytest.approx(2.111111, **close)
    assert seen["gradient_norm"].item() == pytest.approx((2 * 2.111111) ** 0.5, **close)
    terms.mean().backward()
    assert generated.grad[0].tolist() == pytest.approx([0.333333, -0.5, 0.5, -0.666667], **close)


def test_worked_values_of_the_critic(dmd):
    generated, noise, _, _, fake = dmd
    generated.requires_grad_()
    fake.requires_grad_()
    terms, seen = dmd_critic_terms(fake, generated, noise)
    assert terms.item() == pytest.approx(0.025, abs=5e-7)
    assert seen == {}
    terms.sum().backward()
    assert generated.grad is None
    torch.testing.assert_close(fake.grad, (fake - (noise - generated)).detach() / 2)


def test_neither_teacher_nor_critic_gets_a_gradient_from_the_generator(dmd):
    for leaf in (dmd[0], dmd[3], dmd[4]):
        leaf.requires_grad_()
    dmd_generator_terms(*dmd)[0].sum().backward()
    assert dmd[3].grad is None
    assert dmd[4].grad is None


def test_each_sample_is_normalised_by_itself(dmd):
    other = [t + 0.1 for t in dmd]
    both, _ = dmd_generator_terms(*(torch.cat(pair) for pair in zip(dmd, other, strict=True)))
    alone = torch.cat([dmd_generator_terms(*dmd)[0], dmd_generator_terms(*other)[0]])
    assert torch.equal(both, alone)


def test_a_generator_at_the_teachers_data_has_a_bounded_normalizer(dmd):
    generated, noise, sigma, _, fake = dmd
    _, seen = dmd_generator_terms(generated, noise, sigma, noise - generated, fake)
    assert seen["normalizer"].item() == pytest.approx(1e-5)


def test_a_velocity_that_is_not_a_number_moves_nothing(dmd):
    dmd[4][0, 1] = torch.nan
    dmd[0].requires_grad_()
    terms, _ = dmd_generator_terms(*dmd)
    terms.sum().backward()
    assert terms.isfinite().all()
    assert dmd[0].grad[0, 1] == 0


def test_masked_dimensions_are_as_if_they_were_not_there(dmd):
    mask = torch.tensor([[True, False, True, True]])
    masked, _ = dmd_generator_terms(*dmd, mask=mask)
    cut, _ = dmd_generator_terms(*(t[:, [0, 2, 3]] if t.dim() == 2 else t for t in dmd))
    torch.testing.assert_close(masked, cut)
