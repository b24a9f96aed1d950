"""The ratio of a sequence, and the clipped weight: worked values, gradients, masked slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stacx_core.objectives import make_reducer, sum_of_sample_mean, where_masked
from stacx_plugin_grpo.objectives import cispo_loss, clipped_surrogate, sequence_log_ratio

LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
NEW = torch.tensor([-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1])
OLD = torch.tensor([-0.6, -1.0, -0.35, -0.8, -2.0, -1.0, -1.05])
ADVANTAGES = torch.tensor([0.8, 0.8, 0.8, -0.5, -0.5, -0.5, -0.5])


def summed(x: Tensor) -> float:
    return sum_of_sample_mean(x, LENGTHS, MASKS).item()


@pytest.mark.parametrize("bounds", [(3e-4, 4e-4), (0.2, 0.28)])
def test_worked_values_of_gspo(bounds: tuple[float, float]) -> None:
    policy = clipped_surrogate(sequence_log_ratio(NEW, OLD, LENGTHS, MASKS), ADVANTAGES, *bounds)
    assert policy.ratio.tolist() == pytest.approx([0.983471] * 3 + [1.051271] * 4, abs=2e-6)
    assert policy.loss.tolist() == pytest.approx([-0.786777] * 3 + [0.525636] * 4, abs=2e-6)
    assert summed(policy.loss) == pytest.approx(-0.261142, abs=2e-6)
    assert summed(policy.clipped) == 0.0


def test_worked_values_of_gspo_with_the_other_signs() -> None:
    """Both sequences are clipped, so that neither has a gradient."""
    new = NEW.clone().requires_grad_()
    advantages = torch.tensor([-0.8] * 3 + [0.5] * 4)
    policy = clipped_surrogate(sequence_log_ratio(new, OLD, LENGTHS, MASKS), advantages, 3e-4, 4e-4)
    assert policy.loss.tolist() == pytest.approx([0.79976] * 3 + [-0.5002] * 4, abs=2e-6)
    assert summed(policy.loss) == pytest.approx(0.29956, abs=2e-6)
    assert summed(policy.clipped) == 2.0
    (gradient,) = torch.autograd.grad(sum_of_sample_mean(policy.loss, LENGTHS, MASKS), new)
    assert not gradient.any()


def test_the_gradient_of_gspo_is_spread_over_the_sequence() -> None:
    """``-s A / n`` at each trained token, 0 at the masked one."""
    new = NEW.clone().requires_grad_()
    policy = clipped_surrogate(sequence_log_ratio(new, OLD, LENGTHS, MASKS), ADVANTAGES, 0.2)
    (gradient,) = torch.autograd.grad(sum_of_sample_mean(policy.loss, LENGTHS, MASKS), new)
    first, second = -0.983471 * 0.8 / 3, 1.051271 * 0.5 / 3
    assert gradient.tolist() == pytest.approx([first] * 3 + [second, 0.0, second, second], abs=2e-6)


ROWS = torch.tensor([0.2, 0.0, 7.0, -0.1, 0.1, 0.3, 0.3, 0.0, 0.0])
"""Log-ratios of a short and a long sequence with the same mean, 0.1; the third token of the short one is masked."""
ROW_LENGTHS, ROW_MASKS = [3, 6], [torch.tensor([1, 1, 0]), torch.ones(6)]
SIGNS = torch.tensor([1.0] * 3 + [-1.0] * 6)


@pytest.mark.parametrize("filling", [7.0, 1e4, float("nan")])
@pytest.mark.parametrize(("eps", "expected"), [(0.2, 0.0), (3e-4, 0.052435)])
def test_sequences_weigh_alike_whatever_their_length(eps: float, expected: float, filling: float) -> None:
    """Geometric means, not products; and what stands in a masked slot matters to nobody."""
    mask = torch.cat(ROW_MASKS)
    new = where_masked(ROWS, mask, filling).requires_grad_()
    log_ratio = sequence_log_ratio(new, torch.zeros(9), ROW_LENGTHS, ROW_MASKS)
    assert log_ratio.tolist() == pytest.approx([0.1] * 9, abs=2e-6)
    policy = clipped_surrogate(log_ratio, SIGNS, eps)
    loss = sum_of_sample_mean(policy.loss, ROW_LENGTHS, ROW_MASKS) / 2
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=2e-6)
    assert new.grad is not None
    assert new.grad[2].item() == 0.0


def test_at_ratio_one_each_sequence_has_the_same_gradient() -> None:
    new = torch.zeros(9, requires_grad=True)
    policy = clipped_surrogate(sequence_log_ratio(new, new.detach(), ROW_LENGTHS, ROW_MASKS), torch.ones(9), 0.2)
    (gradient,) = torch.autograd.grad(make_reducer("sample_mean", ROW_LENGTHS, ROW_MASKS)(policy.loss) / 2, new)
    assert [part.sum().item() for part in gradient.split(ROW_LENGTHS)] == pytest.approx([-0.5, -0.5])


def test_a_sequence_without_trained_tokens_has_ratio_one() -> None:
    masks = [torch.zeros(3), MASKS[1]]
    new = NEW.clone().requires_grad_()
    log_ratio = sequence_log_ratio(new, OLD, LENGTHS, masks)
    assert log_ratio[:3].tolist() == [0.0] * 3
    log_ratio.sum().backward()
    assert new.grad is not None
    assert new.grad.isfinite().all()


def test_no_sequences() -> None:
    assert sequence_log_ratio(torch.zeros(0), torch.zeros(0), [], []).shape == (0,)


@pytest.mark.parametrize("eps", [1.0, 0.2])
def test_worked_values_of_cispo(eps: float) -> None:
    """The weights are 1.105171, 0.818731, 1.051271, 0.904837, 1, 1.28 and 0.951229; only the sixth is bounded."""
    new = NEW.clone().requires_grad_()
    loss, clipped = cispo_loss(new, OLD, ADVANTAGES, eps, 0.28)
    expected = [0.442068, 0.785982, 0.252305, -0.407177, -1.0, -0.448, -0.523176]
    assert loss.tolist() == pytest.approx(expected, abs=2e-6)
    assert clipped.tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert summed(loss) == pytest.approx(0.034001, abs=2e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    expected = [-0.884137, -0.654985, -0.841017, 0.452419, 0.5, 0.64, 0.475615]
    assert gradient.tolist() == pytest.approx(expected, abs=2e-6)


def test_clipping_never_takes_a_gradient_away() -> None:
    """Ratio 1.5 with a positive advantage: PPO would stop, CISPO goes on with weight 1.28."""
    new = torch.tensor([1.5]).log().requires_grad_()
    loss, _ = cispo_loss(new, torch.zeros(1), torch.ones(1), 0.2, 0.28)
    loss.backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(-1.28, abs=2e-6)


def test_only_one_bound_given_holds_on_both_sides() -> None:
    _, clipped = cispo_loss(torch.tensor([0.25, -0.25]), torch.zeros(2), torch.ones(2), 0.2)
    assert clipped.tolist() == [1.0, 1.0]
