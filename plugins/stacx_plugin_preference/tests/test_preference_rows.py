"""The layouts of preference data, and what is said of rows that fit none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stacx_core import Args, DataError
from stacx_plugin_preference.rows import Answer, read_rows, split_prompt

Build = Callable[..., Args]
Write = Callable[..., str]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def parts(row: tuple[Answer, ...]) -> list[tuple[Any, Any, bool]]:
    return [(answer.prompt, answer.completion, answer.is_chosen) for answer in row]


def test_prompt_and_two_texts(args_of: Build, jsonl: Write) -> None:
    (row,) = read_rows(jsonl({"prompt": "a", "chosen": "b", "rejected": "c", "score": 3}), args_of())
    assert parts(row) == [("a", "b", True), ("a", "c", False)]
    assert row[0].where.endswith("rows.jsonl, line 1")


def test_columns_may_have_other_names(args_of: Build, jsonl: Write) -> None:
    path = jsonl({"question": "a", "good": "b", "bad": "c"})
    (row,) = read_rows(path, args_of(input_key="question", chosen_key="good", rejected_key="bad"))
    assert parts(row) == [("a", "b", True), ("a", "c", False)]


@pytest.mark.parametrize("prompt", [[user("a")], "a"])
def test_chat_messages(args_of: Build, jsonl: Write, prompt: Any) -> None:
    """A prompt that is text becomes the user's message before responses that are messages."""
    (row,) = read_rows(jsonl({"prompt": prompt, "chosen": [assistant("b")], "rejected": [assistant("c")]}), args_of())
    assert parts(row) == [([user("a")], [assistant("b")], True), ([user("a")], [assistant("c")], False)]


@pytest.mark.parametrize("more", [{}, {"prompt": "a"}, {"prompt_id": "7"}])
def test_whole_conversations(args_of: Build, jsonl: Write, more: dict[str, str]) -> None:
    """The prompt is what they share, whether or not a column repeats it."""
    shared = [user("a"), assistant("b"), user("c")]
    path = jsonl({**more, "chosen": [*shared, assistant("d")], "rejected": [*shared, assistant("e")]})
    (row,) = read_rows(path, args_of())
    assert parts(row) == [(shared, [assistant("d")], True), (shared, [assistant("e")], False)]
    assert not row[0].whole_text


def test_whole_texts(args_of: Build, jsonl: Write) -> None:
    """The space before the difference belongs to the responses."""
    (row,) = read_rows(jsonl({"chosen": "Q: a A: b c", "rejected": "Q: a A: d"}), args_of())
    assert parts(row) == [("Q: a A:", " b c", True), ("Q: a A:", " d", False)]
    assert row[0].whole_text


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("ab c", "ab d", ("ab", " c", " d")),
        ("abc", "abd", ("ab", "c", "d")),
        ("abc", "abc", ("ab", "c", "c")),
        ("abc", "abcd", ("ab", "c", "cd")),
    ],
)
def test_where_texts_are_cut(chosen: str, rejected: str, expected: tuple[str, str, str]) -> None:
    assert split_prompt(chosen, rejected, "here") == expected


def test_a_missing_prompt_column_is_no_slip_of_the_pen(args_of: Build, jsonl: Write) -> None:
    row = {"promt": "a", "chosen": "the b", "rejected": "the c"}
    with pytest.raises(DataError, match=r"line 1: no field 'prompt' \(input_key\) \(did you mean 'promt'\?\)"):
        read_rows(jsonl(row), args_of())
    with pytest.raises(DataError, match="line 1: no field 'question'"):
        read_rows(jsonl({"chosen": "the b", "rejected": "the c"}), args_of(input_key="question"))


def test_unpaired_rows_for_kto(args_of: Build, jsonl: Write) -> None:
    path = jsonl(
        {"prompt": "a", "completion": "b", "label": True},
        {"prompt": [user("a")], "completion": [assistant("c")], "label": False},
        {"prompt": "d", "chosen": "e", "rejected": "f"},
    )
    rows = read_rows(path, args_of(dpo_loss_type="kto"))
    assert [parts(row) for row in rows] == [
        [("a", "b", True)],
        [([user("a")], [assistant("c")], False)],
        [("d", "e", True)],
        [("d", "f", False)],
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["a"], "a row must be an object with named fields, not list"),
        ({"prompt": "a", "chosen": "b"}, r"no field 'rejected' \(rejected_key\); fields there: 'prompt', 'chosen'"),
        ({"prompt": "a", "choosen": "b", "rejected": "c"}, "did you mean 'choosen'"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "'rejected' must be a string or a list of chat messages"),
        ({"prompt": "a", "chosen": "b", "rejected": [assistant("c")]}, "both be text or both be chat messages"),
        ({"prompt": " ", "chosen": "b", "rejected": "c"}, "'prompt' is empty"),
        (
            {"prompt": [user("a"), assistant("b")], "chosen": "c", "rejected": "d"},
            "'prompt' ends with the assistant's message",
        ),
        (
            {"prompt": "a", "chosen": [assistant("b")], "rejected": [user("c")]},
            "'rejected' goes on with a message of the user",
        ),
        ({"chosen": "b", "rejected": "c"}, "do not begin alike"),
        ({"chosen": " b", "rejected": " c"}, "do not begin alike"),
        ({"chosen": [user("a"), user("b")], "rejected": [user("a"), user("c")]}, "'chosen' goes on with a message"),
        (
            {"prompt": "a", "chosen": [{"role": "assistant"}], "rejected": [assistant("c")]},
            "'content' must be a string",
        ),
    ],
)
def test_malformed_rows_are_named(args_of: Build, jsonl: Write, row: Any, message: str) -> None:
    path = jsonl({"prompt": "a", "chosen": "b", "rejected": "c"}, row)
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2.*{message}"):
        read_rows(path, args_of())


@pytest.mark.parametrize("label", [1, "true", None])
def test_a_label_is_true_or_false(args_of: Build, jsonl: Write, label: Any) -> None:
    with pytest.raises(DataError, match="line 1: 'label' must be true or false"):
        read_rows(jsonl({"prompt": "a", "completion": "b", "label": label}), args_of(dpo_loss_type="kto"))


def test_no_row_at_all(args_of: Build, jsonl: Write) -> None:
    with pytest.raises(DataError, match="has no row"):
        read_rows(jsonl(), args_of())


def test_margins(args_of: Build, jsonl: Write) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    args = args_of(margin_key="margin")
    (answers,) = read_rows(jsonl({**row, "margin": 2}), args)
    assert [answer.margin for answer in answers] == [2.0, 2.0]
    for bad in ({}, {"margin": None}, {"margin": "2"}, {"margin": True}, {"margin": float("nan")}):
        with pytest.raises(DataError, match=r"line 1: .*margin"):
            read_rows(jsonl({**row, **bad}), args)


@pytest.mark.parametrize("layout", ["parquet", "folder"])
def test_tables(args_of: Build, tmp_path: Any, layout: str) -> None:
    """What a data set library writes reads as the JSON lines do."""
    import datasets

    rows = [{"prompt": [user("a")], "chosen": [assistant(word)], "rejected": [assistant("d")]} for word in "bc"]
    table, path = datasets.Dataset.from_list(rows), tmp_path / ("rows.parquet" if layout == "parquet" else "rows")
    table.to_parquet(path) if layout == "parquet" else table.save_to_disk(path)
    read = read_rows(str(path), args_of())
    assert [parts(row)[0] for row in read] == [([user("a")], [assistant(word)], True) for word in "bc"]
    assert read[1][0].where == f"{path}, row 2"
