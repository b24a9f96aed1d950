"""Corrections for the mismatch of trainer and engine, and off-policy masking: worked values and edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stacx_core.objectives import sum_of_sample_mean
from stacx_plugin_grpo.objectives import (
    effective_sample_size,
    importance_ratios,
    importance_weights,
    inside,
    opsm_mask,
    ppo_clip_loss,
    sequence_means,
    truncated_importance_weights,
    without_veto,
)

LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
NEW = torch.tensor([-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1])
OLD = torch.tensor([-0.6, -1.0, -0.35, -0.8, -2.0, -1.0, -1.05])
ENGINE = torch.tensor([-0.62, -0.95, -0.3, -0.85, -2.1, -1.4, -1.0])
ADVANTAGES = torch.tensor([0.8, 0.8, 0.8, -0.5, -0.5, -0.5, -0.5])
RAW = [1.020201, 0.951229, 0.951229, 1.051271, 1.105171, 1.491825, 0.951229]


def summed(x: Tensor) -> float:
    return sum_of_sample_mean(x, LENGTHS, MASKS).item()


def ratios(level: str = "token") -> Tensor:
    return importance_ratios(OLD, ENGINE, LENGTHS, MASKS, level)


def loss(weights: Tensor) -> float:
    return summed(ppo_clip_loss(NEW, OLD, ADVANTAGES, 0.2, 0.28).loss * weights)


def test_worked_values_of_truncated_importance_weights() -> None:
    weights, clipped = truncated_importance_weights(OLD, ENGINE, clip=1.3)
    assert weights.tolist() == pytest.approx([*RAW[:5], 1.3, RAW[6]], abs=2e-6)
    assert summed(clipped) == pytest.approx(0.333333, abs=2e-6)
    assert loss(weights) == pytest.approx(-0.173199, abs=2e-6)
    raw, none_clipped = truncated_importance_weights(OLD, ENGINE)
    assert raw.tolist() == pytest.approx(RAW, abs=2e-6)
    assert not none_clipped.any()


def test_masking_at_token_level_is_icepop() -> None:
    weights, bounded = importance_weights(ratios(), 1.3, 0.95, "mask")
    assert weights.tolist() == pytest.approx([*RAW[:5], 0.0, RAW[6]], abs=2e-6)
    assert bounded.tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert loss(weights) == pytest.approx(-0.465668, abs=2e-6)


def test_worked_values_of_the_levels() -> None:
    assert ratios().tolist() == pytest.approx(RAW, abs=2e-6)
    assert ratios("sequence").tolist() == pytest.approx([0.923116] * 3 + [1.491825] * 4, abs=2e-6)
    assert ratios("geometric").tolist() == pytest.approx([0.973686] * 3 + [1.142631] * 4, abs=2e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("clip", [0.5, 1.0, 2.0]), ("truncate", [0.25, 1.0, 2.0]), ("mask", [0.0, 1.0, 0.0])],
)
def test_modes(mode: str, expected: list[float]) -> None:
    weights, bounded = importance_weights(torch.tensor([0.25, 1.0, 3.0]), 2.0, 0.5, mode)
    assert weights.tolist() == expected
    assert bounded.tolist() == [float(mode != "truncate"), 0.0, 1.0]


def test_rejected_tokens_stay_in_the_denominator() -> None:
    """Bounds 0.5 and 1.3 reject one of three trained tokens; the other two still count one third each."""
    kept = inside(ratios(), 1.3, 0.5)
    assert kept.tolist() == [1, 1, 1, 1, 1, 0, 1]
    assert loss(ratios() * kept) == pytest.approx(-0.465668, abs=2e-6)


def test_a_geometric_mask_with_truncated_token_weights() -> None:
    kept = inside(ratios("geometric"), 1.10, 0.95)
    assert kept.tolist() == [1.0] * 3 + [0.0] * 4
    weights, _ = importance_weights(ratios(), 2.0, mode="truncate")
    assert loss(weights * kept) == pytest.approx(-0.775013, abs=2e-6)


def test_one_token_vetoes_its_sequence() -> None:
    old = torch.tensor([-12.0, -1.0, -1.0, -1.0])
    engine = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    masks = [torch.tensor([1, 1]), torch.tensor([1, 1])]
    assert without_veto(old, engine, [2, 2], masks, 1e-4).tolist() == [0, 0, 1, 1]
    masks[0][0] = 0
    assert without_veto(old, engine, [2, 2], masks, 1e-4).tolist() == [1, 1, 1, 1]


def test_worked_values_of_the_effective_sample_size() -> None:
    sizes = effective_sample_size(importance_ratios(NEW, OLD, LENGTHS, MASKS), LENGTHS, MASKS)
    assert sizes.tolist() == pytest.approx([0.984536, 0.966241], abs=2e-6)
    assert effective_sample_size(torch.ones(3), [3], [torch.zeros(3)]).tolist() == [0.0]


def test_the_lower_bound_of_the_weights() -> None:
    weights, clipped = truncated_importance_weights(torch.tensor([-3.0, -1.0]), torch.full((2,), -1.0), 2.0, 0.5)
    assert weights.tolist() == [0.5, 1.0]
    assert clipped.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_ratios_are_finite_and_carry_no_gradient(level: str) -> None:
    far = torch.full((7,), -300.0)
    found = importance_ratios(OLD.clone().requires_grad_(), far, LENGTHS, MASKS, level)
    assert found.isfinite().all()
    assert not found.requires_grad


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_a_sequence_without_trained_tokens_has_ratio_one(level: str) -> None:
    assert importance_ratios(OLD, ENGINE, LENGTHS, [torch.zeros(3), MASKS[1]], level)[:3].tolist() == [1.0] * 3


def test_unknown_levels_and_modes_list_the_choices() -> None:
    with pytest.raises(ValueError, match="choose token, sequence or geometric"):
        ratios("word")
    with pytest.raises(ValueError, match="choose clip, truncate or mask"):
        importance_weights(ratios(), mode="drop")


def test_worked_values_of_off_policy_masking() -> None:
    """Only the second sequence has a negative advantage, and it drifted by -0.05."""
    assert sequence_means(OLD - NEW, LENGTHS, MASKS).tolist() == pytest.approx([0.016667, -0.05], abs=2e-6)
    assert opsm_mask(NEW, OLD, ADVANTAGES, LENGTHS, MASKS).tolist() == [1.0] * 7
    assert opsm_mask(NEW, OLD, ADVANTAGES, LENGTHS, MASKS, -0.1).tolist() == [1.0] * 3 + [0.0] * 4


def test_off_policy_masking_looks_at_the_sign_of_each_token() -> None:
    advantages = torch.tensor([1.0, -1.0, 0.0] + [-1.0] * 4)
    assert opsm_mask(NEW, OLD, advantages, LENGTHS, MASKS, 0.01).tolist() == [1, 0, 1, 1, 1, 1, 1]
