"""Returns and advantages along a response: worked values, masked tokens, the chunked recursion, the value loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stacx_plugin_grpo.objectives import clipped_value_loss, discounted_sums, gae_advantages, reinforce_returns

VALUES = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
MASK = torch.tensor([1, 1, 0, 1, 1])
PENALTIES = 0.1 * torch.tensor([0.05, 0.1, 0.2, -0.05, 0.02])
NONE = torch.zeros(5)


def rounded(x: torch.Tensor) -> list[float]:
    return [round(v, 6) for v in x.tolist()]


@pytest.mark.parametrize("chunk", [1, 2, 128])
@pytest.mark.parametrize(
    ("masking", "advantages", "returns"),
    [
        (
            "all",
            [0.71488, 0.661223, 0.610551, 0.568369, 0.498],
            [0.81488, 0.861223, 0.910551, 0.968369, 0.998],
        ),
        ("trainable", [0.770678, 0.720551, 0.0, 0.568369, 0.498], [0.870678, 0.920551, 0.0, 0.968369, 0.998]),
    ],
)
def test_worked_values_of_gae(masking: str, advantages: list[float], returns: list[float], chunk: int) -> None:
    found = gae_advantages(1.0, PENALTIES, VALUES, MASK, gamma=0.99, lambd=0.95, masking=masking, chunk=chunk)
    assert found[0].tolist() == pytest.approx(advantages, abs=2e-6)
    assert found[1].tolist() == pytest.approx(returns, abs=2e-6)
    assert (found[0].dtype, found[1].dtype) == (torch.float32, torch.float32)


def test_worked_values_of_the_temporal_differences() -> None:
    """With lambda 0 the advantages are the differences themselves."""
    deltas, _ = gae_advantages(1.0, PENALTIES, VALUES, MASK, gamma=0.99, lambd=0.0, masking="all")
    assert deltas.tolist() == pytest.approx([0.093, 0.087, 0.076, 0.1, 0.498], abs=2e-6)


def test_what_a_tool_wrote_changes_no_advantage() -> None:
    """Values 9 at masked tokens, and a masked tail with value 5 behind the last trained token."""
    advantages, _ = gae_advantages(
        1.0, torch.zeros(4), torch.tensor([0.5, 9.0, 9.0, 0.2]), torch.tensor([1, 0, 0, 1]), lambd=0.5
    )
    assert advantages.tolist() == pytest.approx([0.1, 0.0, 0.0, 0.8], abs=2e-6)
    advantages, _ = gae_advantages(
        1.0, torch.zeros(3), torch.tensor([0.4, 0.6, 5.0]), torch.tensor([1, 1, 0]), gamma=0.9, lambd=0.8
    )
    assert advantages.tolist() == pytest.approx([0.428, 0.4, 0.0], abs=2e-6)


@given(length=st.integers(0, 5))
def test_the_length_of_a_tools_output_changes_no_advantage(length: int) -> None:
    mask = torch.tensor([1, 1] + [0] * length + [1])
    values = torch.tensor([0.5, 0.1] + [9.0] * length + [0.2])
    advantages, _ = gae_advantages(1.0, torch.zeros(len(mask)), values, mask, gamma=0.9, lambd=0.8)
    expected, _ = gae_advantages(
        1.0, torch.zeros(3), torch.tensor([0.5, 0.1, 0.2]), torch.ones(3), gamma=0.9, lambd=0.8
    )
    assert torch.equal(advantages[mask == 1], expected)


def test_a_cut_response_can_be_valued_by_its_last_state() -> None:
    cut, _ = gae_advantages(0.0, NONE, VALUES, torch.ones(5), lambd=0.0, bootstrap=True)
    ended, _ = gae_advantages(0.0, NONE, VALUES, torch.ones(5), lambd=0.0)
    assert rounded(cut - ended) == [0.0, 0.0, 0.0, 0.0, 0.5]


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=8), st.floats(-1, 1, width=32))
def test_without_discount_and_decay_an_advantage_is_the_reward_to_go_minus_the_value(
    values: list[float], reward: float
) -> None:
    count = len(values)
    penalties = torch.linspace(-1, 1, count)
    advantages, returns = gae_advantages(reward, penalties, torch.tensor(values), torch.ones(count))
    to_go = reward - penalties.flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(returns, to_go, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(advantages, to_go - torch.tensor(values), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(0, 600),
    chunk=st.sampled_from([1, 2, 128]),
    decay=st.sampled_from([0.0, 0.5, 0.95, 0.9999, 1.0]),
    seed=st.integers(0, 99),
)
def test_the_chunked_recursion_equals_the_plain_one(length: int, chunk: int, decay: float, seed: int) -> None:
    x = torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, following = [], 0.0
    for value in reversed(x.tolist()):
        following = value + decay * following
        expected.insert(0, following)
    assert discounted_sums(x, decay, chunk).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_worked_values_of_reinforce_returns() -> None:
    found = reinforce_returns(1.0, PENALTIES, MASK, gamma=0.99, masking="all")
    assert found.tolist() == pytest.approx([0.948626, 0.963259, 0.98309, 0.99302, 0.998], abs=2e-6)
    tail = reinforce_returns(-1.0, 0.1 * torch.tensor([0.1, 0.0, 0.3]), torch.tensor([1, 1, 0]), gamma=0.99)
    assert tail.tolist() == pytest.approx([-1.0, -1.0, 0.0], abs=2e-6)


def test_masked_tokens_carry_the_discount_only_if_asked() -> None:
    mask = torch.tensor([1, 0, 0, 1])
    carried = reinforce_returns(0.0, torch.ones(4), mask, gamma=0.9, masking="all")
    assert carried.tolist() == pytest.approx([-1.729, -0.81, -0.9, -1.0], abs=2e-6)
    left_out = reinforce_returns(0.0, torch.ones(4), mask, gamma=0.9)
    assert left_out.tolist() == pytest.approx([-1.9, 0.0, 0.0, -1.0], abs=2e-6)


@pytest.mark.parametrize("masking", ["trainable", "all"])
def test_the_divergence_of_a_tools_output_does_not_leak(masking: str) -> None:
    """The return is not reset at the masked span, either."""
    penalties = 0.1 * torch.tensor([0.2, 0.1, 5.0, float("nan"), 0.3])
    mask = torch.tensor([1, 1, 0, 0, 1])
    found = reinforce_returns(1.0, penalties, mask, masking=masking)
    assert found[mask == 1].tolist() == pytest.approx([0.94, 0.96, 0.97], abs=2e-6)


@pytest.mark.parametrize("masking", ["trainable", "all"])
@pytest.mark.parametrize("length", [0, 3])
def test_a_response_without_trained_tokens_gets_zero(masking: str, length: int) -> None:
    """Whatever its reward, even none."""
    mask, nothing = torch.zeros(length), torch.zeros(length)
    found = gae_advantages(float("nan"), nothing, nothing + float("nan"), mask, masking=masking)
    for vector in (*found, reinforce_returns(4.0, nothing, mask, masking=masking)):
        assert vector.tolist() == [0.0] * length


def test_unknown_masking_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="choose trainable or all"):
        reinforce_returns(1.0, NONE, MASK, masking="some")


def test_worked_values_of_the_value_loss() -> None:
    values = torch.tensor([0.5, 0.25, 0.1], requires_grad=True)
    loss, clipped = clipped_value_loss(values, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.6, 0.3, 0.0]), 0.2)
    assert loss.tolist() == pytest.approx([0.09, 0.0025, 0.01], abs=2e-6)
    assert loss.mean().item() == pytest.approx(0.034167, abs=2e-6)
    assert clipped.mean().item() == pytest.approx(0.333333, abs=2e-6)


def test_a_value_gains_nothing_beyond_its_clip() -> None:
    """Old value 1, new 2, return 3: the clipped value 1.2 has the larger error, 3.24, and no gradient."""
    values = torch.tensor([2.0], requires_grad=True)
    loss, clipped = clipped_value_loss(values, torch.tensor([1.0]), torch.tensor([3.0]), 0.2)
    assert 0.5 * loss.item() == pytest.approx(1.62, abs=2e-6)
    assert clipped.tolist() == [1.0]
    loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0]
    loose, _ = clipped_value_loss(values, torch.tensor([1.0]), torch.tensor([3.0]), 10.0)
    assert 0.5 * loose.item() == 0.5


def test_gradient_of_the_value_loss_away_from_the_kinks() -> None:
    values = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64, requires_grad=True)
    old, returns = (torch.tensor(x, dtype=torch.float64) for x in ([0.1, 0.2, 0.3], [0.6, 0.3, 0.0]))
    assert torch.autograd.gradcheck(lambda v: clipped_value_loss(v, old, returns, 0.17)[0], (values,))
