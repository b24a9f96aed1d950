"""RLOO: each response against the mean of the others to the same prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacx_plugin_grpo.objectives import compute_group_advantages
from stacx_plugin_grpo.recipes.rloo import leave_one_out, leave_one_out_advantages

small_rewards = st.lists(st.tuples(st.floats(-10, 10, width=16), st.integers(0, 2)), min_size=1, max_size=8)


def rloo(
    rewards: list[float], groups: list[int], ids: list[int] | None = None, votes: list[bool] | None = None
) -> list[float]:
    return compute_group_advantages(leave_one_out, rewards, groups, ids, votes).tolist()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 1], [0.666667, -0.666667, -0.666667, 0.666667]), ([3, 1, 2], [1.5, -1.5, 0.0]), ([5], [0.0])],
)
def test_worked_values_of_leave_one_out(rewards: list[float], expected: list[float]) -> None:
    assert rloo(rewards, [0] * len(rewards)) == pytest.approx(expected, abs=2e-6)


@settings(deadline=None)
@given(rows=small_rewards)
def test_leave_one_out_compares_with_the_mean_of_the_others(rows: list[tuple[float, int]]) -> None:
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    for i, advantage in enumerate(rloo(rewards, groups)):
        others = [r for j, (r, g) in enumerate(rows) if g == groups[i] and j != i]
        expected = rewards[i] - sum(others) / len(others) if others else 0.0
        assert advantage == pytest.approx(expected, abs=1e-5)


def test_leave_one_out_leaves_out_whole_rollouts() -> None:
    """Two parts of one rollout are each compared with the other rollout; who has no vote, with all that have one."""
    assert rloo([1.0, 1.0, 0.0], [0] * 3, [0, 0, 1]) == [1.0, 1.0, -1.0]
    assert rloo([1.0, 0.0, 9.0], [0] * 3, votes=[True, True, False]) == [1.0, -1.0, 8.5]


def test_the_stage_of_rloo(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([3.0, 1.0, 2.0, 7.0], [[1, 1], [1], [1], [0]])
    metrics = leave_one_out_advantages(batch, arguments("rloo"))
    assert [a.tolist() for a in batch["advantages"]] == [[1.5, 1.5], [-1.5], [0.0], [0.0]]
    assert metrics["flat_group_frac"] == 0.0
