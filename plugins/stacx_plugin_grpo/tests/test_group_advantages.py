"""Group advantages: worked values, who votes, groups of one, and the whole-batch stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stacx_core import BatchError, NonFiniteError
from stacx_plugin_grpo.advantages import group_advantages
from stacx_plugin_grpo.objectives import compute_grpo_advantages, group_statistics

REWARDS = [1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 5.0]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 2]
NORMALISED = [0.866024, -0.866024, -0.866024, 0.866024, 0.0, 0.0, 0.0, 0.0]


def test_worked_values() -> None:
    advantages = compute_grpo_advantages(REWARDS, GROUPS)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx(NORMALISED, abs=2e-6)
    assert advantages[4:].tolist() == [0.0] * 4


def test_worked_values_without_the_standard_deviation() -> None:
    advantages = compute_grpo_advantages(REWARDS, GROUPS, std_normalization=False)
    assert advantages.tolist() == [0.5, -0.5, -0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_worked_values_of_a_lopsided_group() -> None:
    advantages = compute_grpo_advantages([1, 1, 1, 0], [7] * 4)
    assert advantages.tolist() == pytest.approx([0.499999] * 3 + [-1.499997], abs=2e-6)


def test_uneven_groups_are_not_normalised_as_one() -> None:
    as_one_group = [-0.391116, -1.016902, -1.016902, -0.391116, 0.23467, 0.23467, 0.23467, 2.112027]
    assert compute_grpo_advantages(REWARDS, [0] * 8).tolist() == pytest.approx(as_one_group, abs=2e-6)
    assert compute_grpo_advantages(REWARDS, GROUPS).tolist() != pytest.approx(as_one_group, abs=0.1)


@pytest.mark.parametrize("reward", [0.5, 0.1, -1e6, 0.0, 1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("std_normalization", [True, False])
def test_equal_rewards_give_exactly_zero(reward: float, size: int, std_normalization: bool) -> None:
    """Also where the mean of equal numbers is not that number in floating point."""
    rollout_ids = [0] * 3 + list(range(1, size))
    advantages = compute_grpo_advantages(
        [reward] * (size + 2), [0] * (size + 2), rollout_ids, std_normalization=std_normalization
    )
    assert advantages.tolist() == [0.0] * (size + 2)
    assert group_statistics([reward] * (size + 2), [0] * (size + 2), rollout_ids)[0].flat


def test_a_flat_group_beside_another_is_counted_by_itself() -> None:
    advantages = compute_grpo_advantages([1, 1, 0, 1], [0, 0, 1, 1])
    assert advantages.tolist() == pytest.approx([0, 0, -0.707107, 0.707107], abs=2e-6)
    assert [g.flat for g in group_statistics([1, 1, 0, 1], [0, 0, 1, 1]).values()] == [True, False]


@pytest.mark.parametrize(("choice", "expected"), [("zero", 0.0), ("raw", 3.0)])
def test_group_of_one(choice: str, expected: float) -> None:
    assert compute_grpo_advantages([3.0], [0], group_of_one=choice).tolist() == [expected]


def test_group_of_one_can_be_refused() -> None:
    with pytest.raises(BatchError, match=r"only one rollout of group 4 votes.*--group-of-one zero or raw"):
        compute_grpo_advantages([1.0, 0.0, 3.0], [2, 2, 4], group_of_one="error")


def test_unknown_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="choose zero, raw or error"):
        compute_grpo_advantages([3.0], [0], group_of_one="nan")


def test_parts_of_one_rollout_count_once() -> None:
    """Rollout 0 comes in three parts; the group's mean is (1 + 0) / 2, not 3 / 4."""
    advantages = compute_grpo_advantages([1, 1, 1, 0], [0] * 4, [0, 0, 0, 1], std_normalization=False)
    assert advantages.tolist() == [0.5, 0.5, 0.5, -0.5]


def test_parts_with_different_rewards_count_with_their_mean() -> None:
    statistics = group_statistics([1.0, 0.0, 2.5], [0, 0, 0], [5, 5, 6])[0]
    assert (statistics.voters, statistics.mean) == (2, 1.5)
    assert statistics.std == pytest.approx(2**0.5)


def test_who_does_not_vote_is_measured_by_those_who_do() -> None:
    advantages = compute_grpo_advantages([1, 0, 9], [0] * 3, votes=[True, True, False], std_normalization=False)
    assert advantages.tolist() == [0.5, -0.5, 8.5]


def test_who_does_not_vote_gets_zero_in_a_flat_group() -> None:
    assert compute_grpo_advantages([1, 1, 9], [0] * 3, votes=[True, True, False]).tolist() == [0.0] * 3


def test_a_group_in_which_nobody_votes_gets_zero() -> None:
    assert compute_grpo_advantages([1, 2], [0, 0], votes=[False, False]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e155, -3.5e38])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(NonFiniteError, match="sample 1"):
        compute_grpo_advantages([1.0, reward], [3, 3])


def test_the_largest_rewards_have_finite_advantages() -> None:
    assert compute_grpo_advantages([3.4e38, -3.4e38], [0, 0]).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])


def test_no_samples() -> None:
    assert compute_grpo_advantages([], []).shape == (0,)


small_rewards = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda eighths: eighths / 8), st.integers(0, 3)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(rows=small_rewards, data=st.data(), std_normalization=st.booleans())
def test_order_of_the_samples_does_not_matter(
    rows: list[tuple[float, int]], data: st.DataObject, std_normalization: bool
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    straight = compute_grpo_advantages(rewards, groups, std_normalization=std_normalization)
    shuffled = compute_grpo_advantages(
        [rewards[i] for i in order], [groups[i] for i in order], std_normalization=std_normalization
    )
    assert torch.equal(shuffled, straight[list(order)])


@settings(deadline=None)
@given(rows=small_rewards, data=st.data())
def test_cutting_a_rollout_into_parts_changes_nobodys_advantage(
    rows: list[tuple[float, int]], data: st.DataObject
) -> None:
    parts = data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows)))
    ids = [i for i, count in enumerate(parts) for _ in range(count)]
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    cut = compute_grpo_advantages([rewards[i] for i in ids], [groups[i] for i in ids], ids)
    whole = compute_grpo_advantages(rewards, groups)
    torch.testing.assert_close(cut, whole[ids], rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(rows=small_rewards)
def test_advantages_of_a_group_add_up_to_zero(rows: list[tuple[float, int]]) -> None:
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    advantages = compute_grpo_advantages(rewards, groups)
    for group in set(groups):
        total = sum(a for a, g in zip(advantages.tolist(), groups, strict=True) if g == group)
        assert total == pytest.approx(0.0, abs=1e-5)


def test_the_stage_gives_every_response_token_its_samples_advantage(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 0.0], [[1, 0, 1], [1]])
    metrics = group_advantages(batch, arguments())
    first, second = batch["advantages"]
    assert first.tolist() == pytest.approx([0.707106] * 3, abs=2e-6)
    assert second.tolist() == pytest.approx([-0.707106], abs=2e-6)
    assert (first.dtype, second.dtype) == (torch.float32, torch.float32)
    assert metrics == pytest.approx(
        {
            "flat_group_frac": 0.0,
            "reward_mean": 0.5,
            "reward_std": 0.5,
            "advantage_mean": 0.235702,
            "advantage_std": 0.666666,
            "advantage_abs_max": 0.707106,
        },
        abs=2e-6,
    )


def test_flat_groups_are_counted_per_group(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 1.0, 0.0, 1.0], [[1]] * 4, group_indices=[0, 0, 1, 1])
    assert group_advantages(batch, arguments())["flat_group_frac"] == 0.5


@pytest.mark.parametrize("reward", [4.0, float("nan")])
def test_what_cannot_be_trained_on_does_not_vote(whole_batch: Any, arguments: Any, reward: float) -> None:
    """A response without trained tokens changes no advantage and gets none, even if its reward is missing."""
    batch = whole_batch([1.0, 0.0, reward], [[1], [1], [0, 0]])
    metrics = group_advantages(batch, arguments(disable_grpo_std_normalization=True))
    assert [a.tolist() for a in batch["advantages"]] == [[0.5], [-0.5], [0.0, 0.0]]
    assert metrics["reward_mean"] == 0.5


def test_a_group_without_trained_responses_is_not_counted(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 1.0, 4.0], [[1], [1], []], group_indices=[0, 0, 1])
    metrics = group_advantages(batch, arguments())
    assert [a.tolist() for a in batch["advantages"]] == [[0.0], [0.0], []]
    assert metrics["flat_group_frac"] == 1.0


@pytest.mark.parametrize(("votes", "expected"), [(True, [0.0, -1.0, 1.0]), (False, [0.5, -0.5, 1.5])])
def test_truncated_responses_vote_unless_told_otherwise(
    whole_batch: Any, arguments: Any, votes: bool, expected: list[float]
) -> None:
    batch = whole_batch([1.0, 0.0, 2.0], [[1]] * 3, truncated=[0, 0, 1])
    group_advantages(batch, arguments(disable_grpo_std_normalization=True, truncated_in_group_stats=votes))
    assert torch.cat(batch["advantages"]).tolist() == expected


def test_rewards_can_be_used_as_they_are(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, -3.0], [[1], [1]])
    group_advantages(batch, arguments(disable_rewards_normalization=True))
    assert torch.cat(batch["advantages"]).tolist() == [1.0, -3.0]


@pytest.mark.parametrize("disable_rewards_normalization", [False, True])
@pytest.mark.parametrize("reward", [float("nan"), 1e155])
def test_a_trained_reward_that_is_no_float32_is_refused(
    whole_batch: Any, arguments: Any, reward: float, disable_rewards_normalization: bool
) -> None:
    given = arguments(disable_rewards_normalization=disable_rewards_normalization)
    with pytest.raises(NonFiniteError, match="sample 1"):
        group_advantages(whole_batch([1.0, reward], [[1], [1]]), given)


def test_a_batch_without_trained_tokens_has_finite_metrics(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 2.0], [[0], [0]])
    assert set(group_advantages(batch, arguments()).values()) == {0.0}


def test_an_empty_batch(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([], [])
    assert set(group_advantages(batch, arguments()).values()) == {0.0}
    assert batch["advantages"] == []
