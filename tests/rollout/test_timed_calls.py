"""Calls side by side, some of which never return."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from stacx_core.rollout.timed_calls import OverTime, timed_calls


@pytest.mark.parametrize("workers", [1, 3, 99])
def test_answers_come_in_order_whatever_the_number_of_workers(workers: int) -> None:
    assert timed_calls([partial(pow, n, 2) for n in range(20)], workers, 60) == [n * n for n in range(20)]
    assert timed_calls([], workers, 60) == []


def test_what_a_call_raises_is_its_answer() -> None:
    error, number = timed_calls([partial(int, "x"), partial(int, "7")], 1, 60)
    assert isinstance(error, ValueError)
    assert number == 7


def test_as_many_calls_run_at_a_time_as_there_are_workers() -> None:
    """Three calls that wait for one another come back only if all three run at once; four would let two meet."""
    meeting = threading.Barrier(3)
    assert sorted(timed_calls([partial(meeting.wait, 60)] * 3, 3, 60)) == [0, 1, 2]


def test_a_call_that_hangs_keeps_no_place_and_hurts_no_other() -> None:
    release = threading.Event()
    try:
        hung, first, second = timed_calls([release.wait, partial(int, "1"), partial(int, "2")], 1, 1.5)
    finally:
        release.set()
    assert isinstance(hung, OverTime)
    assert str(hung) == "no answer within 1.5 seconds"
    assert (first, second) == (1, 2)
