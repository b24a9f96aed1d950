"""Built-in rewards, loading by name, and failures."""

from __future__ import annotations

import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.prompts import load_prompts
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import ConfigError, RewardError
from stacx_core.knobs import Args
from stacx_core.rewards import load_reward, score
from stacx_core.rewards.gsm8k import final_number, gsm8k, label_number
from stacx_core.rewards.reasoning_gym import answer_text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("48 + 24 = 72\n#### 72", "72"),
        ("first 5, then 72.", "72"),
        ("#### 1,234", "1234"),
        ("#### $1,234.50", "1234.50"),
        ("#### -3", "-3"),
        ("costs -$3", "-3"),
        ("costs $-3", "-3"),
        ("costs \u22123", "-3"),
        ("10-3", "3"),
        ("(10)-3", "3"),
        ("between 10-15", "15"),
        ("1,2,3", "3"),
        ("about .5", "0.5"),
        ("72% of them", "72"),
        (r"\boxed{72}", "72"),
        ("#### 5\nNext question\n#### 6 apples and 7", "6"),
        ("it is 72 ####", "72"),
        ("none", None),
        ("", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("label", "number"), [("72", "72"), ("so 2*36\n#### 72", "72"), ("$1,000.", "1000"), ("-0.5", "-0.5")]
)
def test_label_number(label: str, number: str) -> None:
    assert label_number(label) == Decimal(number)


@pytest.mark.parametrize("label", ["", "seventy", "72 apples", "#### ", "nan", "1e5"])
def test_a_label_that_is_no_number_is_an_error(label: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        label_number(label)


@pytest.mark.parametrize(("response", "value"), [("72", 1.0), ("72.00", 1.0), ("73", 0.0), ("-72", 0.0), ("", 0.0)])
def test_gsm8k_is_one_or_zero(response: str, value: float) -> None:
    assert gsm8k(Sample(response=response, label="#### 72")) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_any_way_to_write_a_number_is_read_back(value: Decimal) -> None:
    for text in (f"{value}", f"{value:,}", f"is {value:,}.", f"x = {value}\n#### {value:,}"):
        assert final_number(text) == value
    assert label_number(f"{value:,}") == value


@given(st.text(alphabet="0123456789,.$-#\u2212 \nx", max_size=200))
def test_any_response_gets_one_or_zero(text: str) -> None:
    assert gsm8k(Sample(response=text, label="7")) in (0.0, 1.0)


REPEATED = ["1,", "-$", "9", "111,", ".", "####", "1.1.", "1,111,1111", "<answer>", "</answer>"]


@pytest.mark.parametrize("unit", REPEATED)
def test_long_repetitions_are_read_to_the_end(unit: str) -> None:
    text = unit * (500_000 // len(unit))
    assert gsm8k(Sample(response=text, label="7")) == 0.0
    assert answer_text(text + "<answer>x</answer>") == "x"


def test_exact_ignores_space_around() -> None:
    exact = load_reward("exact", Args.of())
    assert exact(Sample(response=" yes\n", label="yes")) == 1.0
    assert exact(Sample(response="Yes", label="yes")) == 0.0


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (" 4 ", "4"),
        ("<answer> 4 </answer>", "4"),
        ("<answer>3</answer> no, <answer>4</answer> done", "4"),
        ("<answer>4", "<answer>4"),
        ("4</answer>", "4</answer>"),
    ],
)
def test_answer_text(response: str, text: str) -> None:
    assert answer_text(response) == text


def test_reasoning_gym_scores_with_the_scorer_of_the_data_set() -> None:
    row = load_prompts("reasoning_gym:chain_sum?size=1", input_key="", label_key=None)[0]
    right = Sample(response=f"so <answer>{row.label}</answer>", metadata=row.metadata)
    wrong = Sample(response="unknown", metadata=row.metadata)
    score([right, wrong], load_reward("reasoning_gym", Args.of()))
    assert right.reward == 1.0
    assert isinstance(wrong.reward, float)
    assert wrong.reward < 0.1


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
def length(sample):
    return len(sample.response)

async def late(sample):
    return 1.0

seven = 7
"""
    (tmp_path / "own_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_function_of_the_users_package() -> None:
    sample = Sample(response="four")
    score([sample], load_reward("own_rewards:length", Args.of()))
    assert sample.reward == 4.0


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsmk8", "no reward is called 'gsmk8' .did you mean 'gsm8k'.*exact, gsm8k, model, reasoning_gym"),
        ("own_rewards:lenght", "did you mean 'length'"),
        ("no_such_module:f", "no_such_module"),
        ("own_rewards:late", "is a coroutine function; it must be a plain function"),
        ("own_rewards:seven", "is of type int; it must be a plain function"),
        ("bad name:f", "no object reference"),
    ],
)
def test_a_wrong_reward_name_is_a_config_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_reward(name, Args.of())


def failing(sample: Sample) -> float:
    raise ZeroDivisionError("no length")


def test_a_reward_that_raises_names_sample_task_and_function() -> None:
    pattern = r"failing on sample 3 \(task 'sums'\): ZeroDivisionError: no length"
    with pytest.raises(RewardError, match=pattern) as caught:
        score([Sample(index=3, task_id="sums")], failing)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "returned nan; a reward must be finite"),
        (-math.inf, "returned -inf"),
        (None, "returned None; a reward is a number or a dict of numbers"),
        ("1.0", "returned '1.0'"),
        ([1.0], r"returned \[1.0\]"),
        (torch.zeros(2), "returned tensor"),
        ({}, "returned an empty dict"),
        ({"format": math.nan}, "entry 'format': returned nan"),
    ],
)
def test_what_is_no_reward_is_refused(value: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        score([Sample(index=3)], lambda sample: value)


@pytest.mark.parametrize(
    ("value", "reward"),
    [(1, 1.0), (True, 1.0), (torch.tensor(0.5), 0.5), ({"a": 1, "b": 0.5}, {"a": 1.0, "b": 0.5})],
)
def test_numbers_of_any_type_become_floats(value: Any, reward: Any) -> None:
    sample = Sample()
    score([sample], lambda sample: value)
    assert sample.reward == reward


def test_a_removed_sample_is_not_scored() -> None:
    sample = Sample(status=SampleStatus.ABORTED)
    score([sample], failing)
    assert sample.reward is None


@pytest.mark.skipif("GSM8K_DIR" not in os.environ, reason="set GSM8K_DIR to a folder with GSM8K's train.jsonl")
def test_every_gsm8k_answer_scores_one_against_itself() -> None:
    lines = (Path(os.environ["GSM8K_DIR"]) / "train.jsonl").read_text().splitlines()
    answers = [json.loads(line)["answer"] for line in lines]
    assert len(answers) == 7473
    assert all(gsm8k(Sample(response=answer, label=answer)) == 1.0 for answer in answers)
    assert all(gsm8k(Sample(response=f"x {label_number(answer)}.", label=answer)) == 1.0 for answer in answers)
