"""Cutting weights into runs of some size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stacx_core.backends.weights import runs


def test_runs_hold_at_most_so_much_and_a_larger_item_is_alone() -> None:
    sizes = {"a": 4, "b": 4, "c": 9, "d": 1, "e": 7}
    assert list(runs(sizes, sizes.__getitem__, 8)) == [["a", "b"], ["c"], ["d", "e"]]


def test_a_run_is_handed_out_before_the_next_one_is_complete() -> None:
    """The items are made as they are needed."""
    made = []
    cut = runs((made.append(item) or item for item in range(9)), lambda _: 1, 2)
    assert next(cut) == [0, 1]
    assert made == [0, 1, 2]


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 40))
def test_runs_keep_every_item_in_order(sizes: list[int], most: int) -> None:
    cut = list(runs(range(len(sizes)), sizes.__getitem__, most))
    assert [item for run in cut for item in run] == list(range(len(sizes)))
    assert all(len(run) == 1 or sum(sizes[item] for item in run) <= most for run in cut)
