"""Optimiser steps of a rollout phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.schedule import optimizer_steps
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
