"""Tables of noise levels, windows of steps, and shares of steps."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import (
    WindowSchedule,
    check_schedule,
    choose_steps,
    make_schedule,
)
from stacx_plugin_diffusion.objectives.schedule import WINDOW_STRATEGIES


@pytest.mark.parametrize(
    ("steps", "shift", "expected"),
    [
        (5, 1.0, [1, 0.8, 0.6, 0.4, 0.2, 0]),
        (5, 3.0, [1, 0.923077, 0.818182, 0.666667, 0.428571, 0]),
        (4, 5.0, [1, 0.9375, 0.833333, 0.625, 0]),
        (1, 3.0, [1, 0]),
    ],
)
def test_worked_values(steps, shift, expected):
    sigmas = make_schedule(steps, shift)
    assert sigmas.dtype == torch.float32
    assert sigmas.tolist() == pytest.approx(expected, abs=5e-7)


@given(st.integers(1, 300), st.floats(0.2, 10))
def test_levels_fall_from_1_to_0(steps, shift):
    sigmas = make_schedule(steps, shift)
    assert len(sigmas) == steps + 1
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert (sigmas.diff() < 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_schedule(0), "at least one step"),
        (lambda: make_schedule(4, -1.0), "positive and finite"),
        (lambda: make_schedule(100, 1e9), "step 0 goes from 1.0 to 1.0. Use fewer steps or a smaller shift"),
        (lambda: check_schedule(torch.tensor([1.0, 0.5, 0.5, 0.0])), "step 1 goes from 0.5 to 0.5"),
        (lambda: check_schedule(torch.tensor([1.0, 0.5])), "ends at 0"),
        (lambda: check_schedule(torch.tensor([1.5, 0.0])), "starts at 1 at most"),
        (lambda: check_schedule(torch.tensor([torch.nan, 0.0])), "starts at 1"),
        (lambda: check_schedule(torch.tensor([0.0])), r"\[T \+ 1\] float32"),
        (lambda: check_schedule(torch.tensor([1.0, 0.0]).double()), "float64"),
        (lambda: choose_steps([], 0.5, torch.Generator()), "at least one step"),
        (lambda: choose_steps([1], 0.0, torch.Generator()), "share"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(st.integers(1, 12), st.floats(0.01, 1), st.integers(0, 99))
def test_a_share_of_the_steps(count, fraction, seed):
    candidates = [2 * i for i in range(count)]
    chosen = choose_steps(candidates, fraction, torch.Generator().manual_seed(seed)).tolist()
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(candidates)
    assert len(chosen) == max(1, int(fraction * count + 0.5))


def test_every_step_gets_its_turn_in_a_share():
    seen = {
        step for seed in range(40) for step in choose_steps(range(9), 0.6, torch.Generator().manual_seed(seed)).tolist()
    }
    assert seen == set(range(9))


@st.composite
def windows(draw):
    steps = draw(st.integers(2, 30))
    high = draw(st.integers(1, steps - 1))
    low = draw(st.integers(0, high - 1))
    least = draw(st.integers(1, 5))
    return WindowSchedule(
        steps,
        size=draw(st.integers(1, high - low)),
        low=low,
        high=high,
        strategy=draw(st.sampled_from(WINDOW_STRATEGIES)),
        stride=draw(st.integers(1, 4)),
        iterations=least + draw(st.integers(0, 5)),
        least=least,
        rate=draw(st.floats(0, 2)),
        threshold=draw(st.integers(0, 10)),
        roll_back=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )


@given(windows(), st.integers(0, 10_000))
def test_a_window_is_within_its_bounds_and_never_has_the_last_step(schedule, iteration):
    window = schedule.window(iteration)
    assert len(window) == schedule.size
    assert schedule.low <= window[0]
    assert window[-1] < schedule.end <= schedule.steps - 1
    assert schedule.window(iteration) == window


@given(windows())
def test_all_starts_are_visited_in_order(schedule):
    if schedule.strategy == "random":
        return
    spans = [schedule.window(i)[0] for i in range(len(schedule.starts) * schedule.iterations)]
    turns = [start for i, start in enumerate(spans) if i == 0 or spans[i - 1] != start]
    assert turns[: len(schedule.starts)] == list(schedule.starts)


def starts(count, **options):
    schedule = WindowSchedule(steps=10, **options)
    return [schedule.window(i)[0] for i in range(count)]


def test_progressive_rolls_back_or_stays():
    options = {"size": 2, "high": 5, "strategy": "progressive", "iterations": 2}
    assert starts(11, **options) == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1]
    assert starts(11, **options, roll_back=False) == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3]
    assert starts(6, **{**options, "stride": 2}) == [0, 0, 2, 2, 0, 0]


def test_decay_spends_less_on_later_starts():
    options = {"size": 2, "high": 5, "strategy": "decay", "iterations": 4, "least": 1}
    assert starts(11, **options) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 0]
    assert starts(3, size=5, high=5, strategy="decay", iterations=2) == [0, 0, 0]


def test_exponential_decay_begins_behind_its_threshold():
    """ceil(4 exp(-0.7 max(0, start - 1))) is 4, 4, 2 and 1."""
    options = {"size": 2, "high": 5, "strategy": "exp_decay", "iterations": 4, "rate": 0.7, "threshold": 1}
    assert starts(12, **options) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 0]


def test_random_windows_depend_on_seed_and_iteration_alone():
    first = starts(200, size=3)
    assert first == starts(200, size=3)
    assert first != starts(200, size=3, seed=1)
    assert set(first) == set(range(7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2, "strategy": "linear"}, "choose one of random, progressive, decay, exp_decay"),
        ({"size": 10}, "a window of 10 steps in [0, 9) does not fit a schedule of 10: it may use steps 0 to 8"),
        ({"size": 1, "high": 10}, "it may use steps 0 to 8"),
        ({"size": 0}, "does not fit"),
        ({"size": 2, "low": 4, "high": 5}, "does not fit"),
        ({"size": 2, "low": -1}, "does not fit"),
        ({"size": 2, "stride": 0}, "stride >= 1"),
        ({"size": 2, "iterations": 2, "least": 3}, "1 <= least <= iterations"),
        ({"size": 2, "rate": -1.0}, "rate >= 0"),
    ],
)
def test_a_bad_window_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        WindowSchedule(steps=10, **options)


def test_a_negative_iteration_is_refused():
    with pytest.raises(ValueError, match="counted from 0"):
        WindowSchedule(steps=10, size=2).window(-1)
