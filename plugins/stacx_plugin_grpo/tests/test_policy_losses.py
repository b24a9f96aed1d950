"""The clipped policy loss: worked values, clips, gradients, masked slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stacx_core.objectives import kl_estimate, make_reducer, sum_of_sample_mean, where_masked
from stacx_plugin_grpo.objectives import ppo_clip_loss

LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
NEW = torch.tensor([-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1])
OLD = torch.tensor([-0.6, -1.0, -0.35, -0.8, -2.0, -1.0, -1.05])
REF = torch.tensor([-0.55, -1.1, -0.4, -1.0, -1.9, -0.8, -0.9])
ADVANTAGES = torch.tensor([0.8, 0.8, 0.8, -0.5, -0.5, -0.5, -0.5])
FLIPPED = -ADVANTAGES
PER_TOKEN = [-0.884137, -0.654985, -0.841017, 0.452419, 0.5, 0.674929, 0.475615]


def summed(x: Tensor) -> float:
    return sum_of_sample_mean(x, LENGTHS, MASKS).item()


def test_worked_values_with_a_higher_upper_clip() -> None:
    policy = ppo_clip_loss(NEW, OLD, ADVANTAGES, 0.2, 0.28)
    ratio = [1.105171, 0.818731, 1.051271, 0.904837, 1.0, 1.349859, 0.951229]
    assert policy.ratio.tolist() == pytest.approx(ratio, abs=2e-6)
    assert policy.loss.tolist() == pytest.approx(PER_TOKEN, abs=2e-6)
    assert summed(policy.loss) == pytest.approx(-0.259058, abs=2e-6)
    assert summed(policy.clipped) == 0.0
    assert summed(OLD - NEW) == pytest.approx(-0.033333, abs=2e-6)
    token_mean = make_reducer("token_mean", LENGTHS, MASKS)(policy.loss) / 6
    assert token_mean.item() == pytest.approx(-0.129529, abs=2e-6)


def test_worked_values_with_the_other_signs() -> None:
    policy = ppo_clip_loss(NEW, OLD, torch.tensor([-0.8] * 3 + [0.5] * 4), 0.1)
    expected = [0.884137, 0.72, 0.841017, -0.452419, -0.5, -0.55, -0.475615]
    assert policy.loss.tolist() == pytest.approx(expected, abs=2e-6)
    assert summed(policy.loss) == pytest.approx(0.322373, abs=2e-6)
    assert summed(policy.clipped) == pytest.approx(0.666667, abs=2e-6)


@pytest.mark.parametrize(
    ("dual_clip", "expected", "dual_clipped"),
    [
        (1.5, [-2.4, 3.0, -1.0, 1.5], [0, 1, 0, 1]),
        (3.0, [-2.4, 4.0, -1.0, 3.0], [0, 0, 0, 1]),
        (None, [-2.4, 4.0, -1.0, 5.0], [0, 0, 0, 0]),
    ],
)
def test_worked_values_of_the_dual_clip(
    dual_clip: float | None, expected: list[float], dual_clipped: list[int]
) -> None:
    """A ratio of 1/2 with a positive advantage is not clipped; the dual clip acts on negative ones only."""
    log_ratio = torch.tensor([2.0, 2.0, 0.5, 5.0]).log()
    advantages = torch.tensor([2.0, -2.0, 2.0, -1.0])
    policy = ppo_clip_loss(log_ratio, torch.zeros(4), advantages, 0.2, 0.2, dual_clip)
    assert policy.loss.tolist() == pytest.approx(expected, abs=2e-6)
    assert policy.dual_clipped.tolist() == dual_clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "high", "dual_clip", "loss", "gradient"),
    [
        (1.5, 1.0, None, None, -1.2, 0.0),
        (1.5, 1.0, 0.28, None, -1.28, 0.0),
        (0.5, -1.0, None, None, 0.8, 0.0),
        (1.5, -1.0, None, None, 1.5, 1.5),
        (0.5, 1.0, None, None, -0.5, -0.5),
        (5.0, -1.0, None, 3.0, 3.0, 0.0),
        (1.0, 2.0, None, None, -2.0, -2.0),
    ],
)
def test_which_branch_is_used(
    ratio: float, advantage: float, high: float | None, dual_clip: float | None, loss: float, gradient: float
) -> None:
    log_probs = torch.tensor([ratio]).log().requires_grad_()
    policy = ppo_clip_loss(log_probs, torch.zeros(1), torch.tensor([advantage]), 0.2, high, dual_clip)
    policy.loss.sum().backward()
    assert policy.loss.item() == pytest.approx(loss, abs=2e-6)
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(gradient, abs=2e-6)
    assert policy.clipped.item() == float(loss != pytest.approx(-ratio * advantage) and dual_clip is None)


@pytest.mark.parametrize("dual_clip", [1.0, 0.5])
def test_a_dual_clip_of_one_or_less_is_refused(dual_clip: float) -> None:
    with pytest.raises(ValueError, match="greater than 1"):
        ppo_clip_loss(NEW, OLD, ADVANTAGES, 0.2, None, dual_clip)


def test_only_the_new_log_probs_get_a_gradient() -> None:
    """With A = t - s computed from the same s, an attached advantage would turn the gradient's sign."""
    log_probs = torch.tensor([-1.2], requires_grad=True)
    advantages = torch.tensor([-0.7]) - log_probs
    ppo_clip_loss(log_probs, log_probs, advantages, 0.2).loss.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(-0.5, abs=2e-6)


def test_a_huge_log_ratio_stays_finite() -> None:
    log_probs = torch.tensor([0.0, -200.0], requires_grad=True)
    policy = ppo_clip_loss(log_probs, torch.tensor([-200.0, 0.0]), torch.tensor([-1.0, -1.0]), 0.2)
    policy.loss.sum().backward()
    assert policy.loss.isfinite().all()
    assert log_probs.grad is not None
    assert log_probs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("log_probs", "old"),
    [
        ([-0.2, 0.0], [-0.2, float("nan")]),
        ([-0.2, -1.5], [-0.2, -95.0]),
        ([-0.2, 0.0], [-0.2, -float("inf")]),
    ],
)
def test_a_masked_slot_changes_neither_loss_nor_gradient(log_probs: list[float], old: list[float]) -> None:
    mask = torch.tensor([1, 0])
    new = torch.tensor(log_probs, requires_grad=True)
    policy = ppo_clip_loss(
        where_masked(new, mask), where_masked(torch.tensor(old), mask), torch.tensor([1.0, 1.0]), 0.2
    )
    loss = sum_of_sample_mean(policy.loss, [2], [mask])
    loss.backward()
    assert loss.item() == -1.0
    assert new.grad is not None
    assert new.grad.tolist() == [-1.0, 0.0]


def test_a_nan_in_a_trained_slot_is_not_hidden() -> None:
    policy = ppo_clip_loss(NEW, torch.full((7,), float("nan")), ADVANTAGES, 0.2, 0.28, 3.0)
    assert policy.loss.isnan().all()


def test_gradient_matches_finite_differences_away_from_the_kinks() -> None:
    new = NEW.double().requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return ppo_clip_loss(x, OLD.double(), FLIPPED.double(), 0.15, 0.28, 1.2).loss

    assert torch.autograd.gradcheck(loss, (new,))


def test_worked_value_of_the_whole_loss() -> None:
    """Clipped policy loss, entropy bonus of weight 0.01 and low_var_kl of weight 0.001."""
    entropy = torch.tensor([0.9, 1.1, 0.7, 1.0, 0.8, 1.2, 0.95])
    policy = ppo_clip_loss(NEW, OLD, ADVANTAGES, 0.2, 0.28).loss
    total = summed(policy - 0.01 * entropy + 0.001 * kl_estimate(NEW, REF, "low_var_kl"))
    assert total == pytest.approx(-0.278544, abs=2e-6)
    assert total / 2 == pytest.approx(-0.139272, abs=2e-6)
