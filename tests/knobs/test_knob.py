"""One knob: its spellings, and the values it takes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core import Args, ConfigError, Knob

EPSILON = Knob("kl_coef", float, 0.1, "Help.", "grpo", minimum=0, maximum=1)
COUNT = Knob("count", int, 3, "Help.", "trainer", minimum=1)
SWITCH = Knob("use_it", bool, False, "Help.", "trainer")
SHAPE = Knob("shape", str, "flat", "Help.", "optimizer", choices=("flat", "linear"))
ODD = Knob("odd", int, 1, "Help.", "trainer", check=lambda n: None if n % 2 else "is even")
ABOVE = Knob("above", float, 1.0, "Help.", "trainer", exclusive_minimum=0)


def test_one_name_gives_every_spelling() -> None:
    assert (EPSILON.flag, EPSILON.env, EPSILON.key) == ("--kl-coef", "STACX_KL_COEF", "grpo.kl_coef")


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [
        (EPSILON, "1e-6", 1e-6),
        (EPSILON, "1", 1.0),
        (COUNT, "7", 7),
        (SHAPE, "linear", "linear"),
        *[(SWITCH, text, True) for text in ("1", "true", "YES", "on")],
        *[(SWITCH, text, False) for text in ("0", "False", "no", "off")],
    ],
)
def test_text_becomes_a_value_of_the_declared_type(knob: Knob, text: str, value: Any) -> None:
    parsed = knob.parse(text, "here")
    assert parsed == value
    assert type(parsed) is knob.type


@pytest.mark.parametrize(
    ("knob", "text", "message"),
    [
        (EPSILON, "much", "here: expected float, got 'much'"),
        (EPSILON, "nan", "is not a finite number"),
        (EPSILON, "inf", "is not a finite number"),
        (EPSILON, "-0.5", "is below the minimum 0"),
        (EPSILON, "1.5", "is above the maximum 1"),
        (COUNT, "1e3", "expected int, got '1e3'"),
        (COUNT, "2.0", "expected int, got '2.0'"),
        (COUNT, "0", "is below the minimum 1"),
        (SWITCH, "maybe", "'maybe' is not a switch; use one of 1, true"),
        (SHAPE, "linaer", "is not one of flat, linear (did you mean 'linear'?)"),
        (ODD, "4", "here: 4 is even"),
        (ABOVE, "0", "must be greater than 0"),
    ],
)
def test_bad_text_is_refused_with_the_reason(knob: Knob, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        knob.parse(text, "here")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        (EPSILON, "1e-6", "expected float, got str '1e-6'; write the number without quotes"),
        (EPSILON, True, "expected float, got bool True"),
        (COUNT, 2.0, "expected int, got float 2.0"),
        (COUNT, True, "expected int, got bool True"),
        (SWITCH, 1, "expected bool, got int 1"),
        (SHAPE, 1, "expected str, got int 1"),
        (SHAPE, ["flat"], "expected str, got list ['flat']"),
    ],
)
def test_a_value_of_another_type_is_refused(knob: Knob, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        knob.validate(value, "here")
    assert message in str(error.value)


def test_an_int_is_taken_for_a_float() -> None:
    value = EPSILON.validate(1, "here")
    assert value == 1.0
    assert type(value) is float


@given(st.floats(min_value=0, max_value=1))
def test_a_number_survives_its_text(value: float) -> None:
    assert EPSILON.parse(repr(value), "here") == value


def test_arguments_are_read_only_and_say_where_they_come_from() -> None:
    args = Args({"lr": 0.5, "seed": None}, {"lr": "flag"})
    assert (args.lr, args.get("seed", 7), args.origin("lr"), args.origin("seed")) == (0.5, 7, "flag", "default")
    with pytest.raises(AttributeError, match="read-only"):
        args.lr = 1.0
    changed = args.replace("test", lr=0.25)
    assert (args.lr, changed.lr, changed.origin("lr")) == (0.5, 0.25, "test")
    assert pickle.loads(pickle.dumps(changed)) == changed
    assert pickle.loads(pickle.dumps(changed)).origin("lr") == "test"


def test_reading_an_undeclared_argument_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'eps_clip'"):
        _ = Args.of(eps_clip=0.2).eps_clp
