"""pass@k and intervals: numbers worked by hand, and laws."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.swe.evaluation.estimates import mean_estimate, pass_at_k, wilson


@pytest.mark.parametrize(
    ("samples", "solved", "k", "value"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 - 3 / 6),  # 3 of the 6 pairs have no solution
        (5, 2, 3, 1 - 1 / 10),
        (10, 3, 5, 1 - 21 / 252),
        (4, 2, 3, 1.0),  # two failures cannot fill three places
        (4, 0, 4, 0.0),
    ],
)
def test_worked_numbers(samples: int, solved: int, k: int, value: float) -> None:
    assert pass_at_k(samples, solved, k) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("numbers", [(0, 0, 1), (3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_what_is_not_defined_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(*numbers)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_it_is_the_share_of_subsets_with_a_solution(numbers: tuple[int, int, int]) -> None:
    samples, solved, k = numbers
    subsets = list(combinations([True] * solved + [False] * (samples - solved), k))
    assert pass_at_k(samples, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_it_grows_with_k_between_its_bounds(numbers: tuple[int, int]) -> None:
    samples, solved = numbers
    ks = sorted({*range(1, min(samples, 12) + 1), samples})
    values = [pass_at_k(samples, solved, k) for k in ks]
    assert values == sorted(values)
    assert values[0] == pytest.approx(solved / samples)
    assert values[-1] == float(solved > 0)
    assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    [
        # Without a success the centre is z^2 / 2n and the half width the same, over 1 + z^2 / n.
        (0.0, 10, 0.0, 3.841459 / (10 + 3.841459)),
        (1.0, 10, 10 / (10 + 3.841459), 1.0),
        (0.8, 10, 0.49016, 0.94332),
        (0.5, 100, 0.40383, 0.59617),
    ],
)
def test_worked_intervals(share: float, count: int, low: float, high: float) -> None:
    assert wilson(share, count) == pytest.approx((low, high), abs=2e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_shrinks(values: list[float]) -> None:
    once, often = mean_estimate(values), mean_estimate(values * 10)
    assert once is not None
    assert often is not None
    assert 0 <= once.low <= once.value <= once.high <= 1
    assert often.value == pytest.approx(once.value)
    assert often.high - often.low < once.high - once.low
    assert (once.tasks, often.tasks) == (len(values), 10 * len(values))


def test_there_is_no_mean_of_nothing() -> None:
    assert mean_estimate([]) is None
    assert str(mean_estimate([0.0, 1.0])) == "0.500 [0.095, 0.905] of 2 tasks"
