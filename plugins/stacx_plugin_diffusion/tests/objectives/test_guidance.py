"""Classifier-free guidance: worked values and gradients."""

from __future__ import annotations

import pytest
import torch

from stacx_plugin_diffusion.objectives import merge_cfg

CONDITIONAL = torch.tensor([[1, -0.5, 0.6, 1.2]])
UNCONDITIONAL = torch.tensor([[0.8, -0.3, 0.4, 1]])


def test_worked_values():
    assert merge_cfg(CONDITIONAL, UNCONDITIONAL, 4).tolist()[0] == pytest.approx([1.6, -1.1, 1.2, 1.8], abs=5e-7)
    renormalized = merge_cfg(CONDITIONAL.double(), UNCONDITIONAL.double(), 4, renormalize_axis=-1)
    assert renormalized.tolist()[0] == pytest.approx([0.961261, -0.660867, 0.720946, 1.081419], abs=5e-7)


@pytest.mark.parametrize("axis", [1, -1])
def test_renormalisation_keeps_the_norm_along_its_axis(axis):
    conditional, unconditional = torch.randn(2, 2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    merged = merge_cfg(conditional, unconditional, 3, renormalize_axis=axis)
    torch.testing.assert_close(merged.norm(dim=axis), conditional.norm(dim=axis))


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_no_guidance_is_the_conditional_velocity(scale):
    assert torch.equal(merge_cfg(CONDITIONAL, None, scale), CONDITIONAL)
    assert torch.equal(merge_cfg(CONDITIONAL, UNCONDITIONAL, scale), CONDITIONAL)


@pytest.mark.parametrize("detach", [True, False])
def test_the_gradient_may_take_one_way_or_both(detach):
    conditional, unconditional = CONDITIONAL.clone().requires_grad_(), UNCONDITIONAL.clone().requires_grad_()
    merge_cfg(conditional, unconditional, 4, detach_unconditional=detach).sum().backward()
    assert conditional.grad.tolist() == [[4.0] * 4]
    assert (unconditional.grad is None) if detach else (unconditional.grad.tolist() == [[-3.0] * 4])


def test_a_merged_velocity_of_zero_stays_zero():
    merged = merge_cfg(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 1.0]]), 2, renormalize_axis=-1)
    assert merged.tolist() == [[0.0, 0.0]]


def test_half_precision_is_upcast():
    assert merge_cfg(CONDITIONAL.bfloat16(), None, 1).dtype == torch.float32
    assert merge_cfg(CONDITIONAL.bfloat16(), UNCONDITIONAL.bfloat16(), 2).dtype == torch.float32


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="needs the velocity without the prompt"):
        merge_cfg(CONDITIONAL, None, 2)
    with pytest.raises(ValueError, match="one shape"):
        merge_cfg(CONDITIONAL, UNCONDITIONAL[:, :1], 2)
