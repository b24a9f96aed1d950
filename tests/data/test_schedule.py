"""Optimiser steps of a rollout phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.schedule import optimizer_steps, rollout_steps
from stacx_core.errors import BatchError


def test_a_step_takes_whole_rollouts_in_order() -> None:
    assert optimizer_steps([5, 5, 3, 9, 3], 2) == ([[0, 1, 2, 4]], 1)
    assert optimizer_steps([5, 5, 3, 9, 3], 1) == ([[0, 1], [2, 4], [3]], 0)


def test_too_few_rollouts_make_no_step() -> None:
    assert optimizer_steps([0, 1], 4) == ([], 2)


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(BatchError, match="global_batch_size is 0"):
        optimizer_steps([0], 0)


@given(st.lists(st.integers(0, 8), max_size=40), st.integers(1, 5))
def test_every_step_has_exactly_the_asked_number_of_rollouts(ids: list[int], size: int) -> None:
    steps, dropped = optimizer_steps(ids, size)
    assert all(len({ids[position] for position in step}) == size for step in steps)
    used = [position for step in steps for position in step]
    assert len(used) == len(set(used))
    assert len({ids[position] for position in used}) + dropped == len(set(ids))
    assert dropped < size


@pytest.mark.parametrize(
    ("rollouts", "expected", "size", "count", "lengths", "left_out"),
    [
        (6, 6, 2, 3, [2, 2, 2], 0),
        (5, 6, 2, 3, [2, 2, 1], 0),
        (7, 7, 2, 3, [2, 2, 2], 1),
        (7, 6, 2, 3, [3, 3, 1], 0),
        (8, 6, 2, 3, [3, 3, 2], 0),
        (15, 8, 8, 1, [15], 0),
        (2, 8, 4, 2, [1, 1], 0),
        (0, 8, 4, 2, [], 0),
    ],
)
def test_a_rollout_makes_the_steps_that_were_asked_for(
    rollouts: int, expected: int, size: int, count: int, lengths: list[int], left_out: int
) -> None:
    steps, dropped = rollout_steps(range(rollouts), size, count, expected)
    assert [len(step) for step in steps] == lengths
    assert dropped == left_out
