"""Shares and draws: worked values, bounds, and the distribution of what is drawn."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_dagger.schedules import BETA_MODES, BetaSchedule, coin, draw_kappa, kappa_limit

CHI_SQUARE_LIMIT_20 = 45.3147
"""Exceeded by chance once in a thousand times with 20 degrees of freedom."""


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (BetaSchedule("linear"), [1, 0.8, 0.6, 0.4, 0.2, 0, 0]),
        (BetaSchedule("cosine"), [1, 0.904508, 0.654508, 0.345492, 0.095492, 0, 0]),
        (BetaSchedule("exponential"), [1, 0.025119, 0.000631, 0.000016, 0, 0, 0]),
        (BetaSchedule("step"), [1, 1, 1, 0, 0, 0, 0]),
        (BetaSchedule("exponential", end=0.1), [1, 0.630957, 0.398107, 0.251189, 0.158489, 0.1, 0.1]),
        (BetaSchedule(warmup=2, decay=4), [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]),
        (BetaSchedule(floor=0.6), [1, 0.8, 0.6, 0.6, 0.6, 0.6]),
    ],
)
def test_the_share_by_iteration(schedule: BetaSchedule, expected: list[float]) -> None:
    assert [schedule.at(i) for i in range(len(expected))] == pytest.approx(expected, abs=1e-6)


share = st.floats(0, 1)


@given(st.sampled_from(BETA_MODES), share, share, st.integers(0, 5), st.integers(1, 20), st.none() | share)
def test_it_goes_from_start_to_end_and_never_back(
    mode: str, start: float, end: float, warmup: int, decay: int, floor: float | None
) -> None:
    schedule = BetaSchedule(mode, start, end, warmup, decay, floor)
    betas = [schedule.at(i) for i in range(warmup + decay + 3)]
    lowest = -1.0 if floor is None else floor
    assert betas[: warmup + 1] == [max(start, lowest)] * (warmup + 1)
    assert betas[warmup + decay :] == [max(end, lowest)] * 3
    assert all(0 <= beta <= 1 for beta in betas)
    steps = [later - earlier for earlier, later in itertools.pairwise(betas)]
    assert all(step <= 1e-12 for step in steps) or all(step >= -1e-12 for step in steps)


def test_the_limit_of_turns_by_iteration() -> None:
    assert [kappa_limit(i, 0, 20, 100) for i in range(8)] == [0, 20, 40, 60, 80, 100, 100, 100]


def test_draws_are_the_same_everywhere() -> None:
    assert draw_kappa(42, "django__django-11099", 3, 60) == 10
    coins = [coin(42, "t", 0, 1, turn) for turn in range(6)]
    assert coins == pytest.approx([0.151075, 0.708875, 0.294806, 0.326111, 0.074304, 0.29428], abs=1e-6)


def test_the_teacher_alone_before_the_limit_grows() -> None:
    assert {draw_kappa(7, str(task), 0, kappa_limit(0, 0, 20, 100)) for task in range(50)} == {0}


def test_takeovers_are_uniform_with_both_ends() -> None:
    """10,000 draws over 0..20: the chi-square statistic against equal shares."""
    counts = Counter(draw_kappa(1, f"task {task}", 5, 20) for task in range(10_000))
    assert sorted(counts) == list(range(21))
    expected = 10_000 / 21
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < CHI_SQUARE_LIMIT_20


def test_coins_fall_as_often_as_they_should() -> None:
    """10,000 coins in twenty-one equal bins: the chi-square statistic, and the share below 0.3."""
    coins = [coin(1, str(task), sample, 2, turn) for task in range(500) for sample in range(4) for turn in range(5)]
    counts = Counter(int(u * 21) for u in coins)
    expected = len(coins) / 21
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < CHI_SQUARE_LIMIT_20
    assert sum(u < 0.3 for u in coins) / len(coins) == pytest.approx(0.3, abs=0.014)


def test_one_takeover_per_task_or_per_sample() -> None:
    assert draw_kappa(1, "a", 3, 10**9) == draw_kappa(1, "a", 3, 10**9)
    assert len({draw_kappa(1, "a", 3, 10**9, sample) for sample in range(20)}) == 20
