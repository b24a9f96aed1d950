"""Preference data: the layouts of a row, and what they are read into."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stacx_core import Args, DataError, Message, nearest, parse_prompt, read_records

MARGIN = "margin"
"""Note in a sample's metadata: by how much the chosen response of its pair is better."""

Text = str | list[Message]
"""Text, or chat messages."""


@dataclass(frozen=True)
class Answer:
    """One response to a prompt.

    Fields:
        prompt: text or chat messages.
        completion: text, or the chat messages that follow the prompt's, the assistant's first.
        is_chosen: whether it is the preferred one, or for unpaired rows a desirable one.
        where: file and line or row, for error messages.
        whole_text: prompt and completion were cut from one text, which no chat template fits.
        margin: by how much the chosen response is better, if the data say so.
    """

    prompt: Text
    completion: Text
    is_chosen: bool
    where: str
    whole_text: bool = False
    margin: float | None = None


def read_rows(source: str, args: Args) -> list[tuple[Answer, ...]]:
    """The rows of a JSONL or Parquet file or a dataset folder: each a chosen and a rejected answer, in that order.

    With ``--dpo-loss-type kto`` each is one answer, of a row with a completion and a label or of one side of a pair.

    Raises:
        DataError: a malformed row, naming file and line; or there is no row.
        ConfigError: the source needs a package that is not installed.
    """
    unpaired = args.get("dpo_loss_type") == "kto"
    rows: list[tuple[Answer, ...]] = []
    for where, record in read_records(source):
        if not isinstance(record, dict):
            raise DataError(f"{where}: a row must be an object with named fields, not {type(record).__name__}")
        if unpaired and args.completion_key in record:
            rows.append((_single(record, where, args),))
        elif unpaired:
            rows += [(answer,) for answer in _pair(record, where, args)]
        else:
            rows.append(_pair(record, where, args))
    if not rows:
        raise DataError(f"preference data {source!r} has no row")
    return rows


def _single(record: dict[str, Any], where: str, args: Args) -> Answer:
    completion = _completion(record, args.completion_key, "completion_key", where)
    label = _field(record, args.desirable_key, "desirable_key", where)
    if not isinstance(label, bool):
        raise DataError(f"{where}: {args.desirable_key!r} must be true or false, not {label!r}")
    prompt = _prompt(record, where, args, isinstance(completion, list))
    return Answer(prompt, _reply(completion, args.completion_key, where), label, where)


def _pair(record: dict[str, Any], where: str, args: Args) -> tuple[Answer, Answer]:
    """The two answers of a row: with a prompt of their own, or as whole texts that begin alike."""
    names = args.chosen_key, args.rejected_key
    sides = [_completion(record, names[0], "chosen_key", where), _completion(record, names[1], "rejected_key", where)]
    if isinstance(sides[0], str) != isinstance(sides[1], str):
        raise DataError(f"{where}: {names[0]!r} and {names[1]!r} must both be text or both be chat messages")
    chat = isinstance(sides[0], list)
    whole = all(isinstance(side, list) and side[0]["role"] != "assistant" for side in sides)
    whole_text = not chat and args.input_key not in record and args.is_default("input_key")
    if whole_text:
        _refuse_misspelt(record, args.input_key, where)
    if whole or whole_text:
        prompt, *sides = split_prompt(sides[0], sides[1], where)
    else:
        prompt = _prompt(record, where, args, chat)
    margin = _margin(record, where, args)
    chosen, rejected = (
        Answer(prompt, _reply(side, name, where), is_chosen, where, whole_text, margin)
        for side, name, is_chosen in zip(sides, names, (True, False), strict=True)
    )
    return chosen, rejected


def split_prompt(chosen: Text, rejected: Text, where: str) -> tuple[Text, Text, Text]:
    """Cut two texts or two conversations where they first differ: prompt, and what is left of either.

    As TRL does it: a space before the difference goes to the completions, and where one is the beginning of the
    other the last piece they share does too.

    Raises:
        DataError: they have no beginning in common.
    """
    shared = min(len(chosen), len(rejected))
    cut = next((i for i in range(shared) if chosen[i] != rejected[i]), shared - 1)
    if cut > 0 and chosen[cut - 1] == " ":
        cut -= 1
    if cut <= 0 or (isinstance(chosen, str) and not chosen[:cut].strip()):
        raise DataError(
            f"{where}: the row has no prompt, and its chosen and rejected responses do not begin alike; "
            "give the prompt a column of its own"
        )
    return chosen[:cut], chosen[cut:], rejected[cut:]


def _refuse_misspelt(record: dict[str, Any], key: str, where: str) -> None:
    """A row without prompt column is cut where its texts differ, which a slip in the column's name must not cause."""
    hint = nearest(key, record)
    if hint:
        raise DataError(f"{where}: no field {key!r} (input_key){hint}; fields there: {', '.join(map(repr, record))}")


def _prompt(record: dict[str, Any], where: str, args: Args, chat: bool) -> Text:
    """The prompt; text before chat messages becomes the user's message."""
    prompt = parse_prompt(_field(record, args.input_key, "input_key", where), f"{where}: {args.input_key!r}")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if chat else prompt
    if prompt[-1]["role"] == "assistant":
        raise DataError(f"{where}: {args.input_key!r} ends with the assistant's message, so nothing is left to answer")
    return prompt


def _completion(record: dict[str, Any], key: str, knob: str, where: str) -> Text:
    value = _field(record, key, knob, where)
    return value if isinstance(value, str) else parse_prompt(value, f"{where}: {key!r}")


def _reply(completion: Text, key: str, where: str) -> Text:
    if isinstance(completion, list) and completion[0]["role"] != "assistant":
        raise DataError(
            f"{where}: {key!r} goes on with a message of the {completion[0]['role']}; it must be the assistant's"
        )
    return completion


def _margin(record: dict[str, Any], where: str, args: Args) -> float | None:
    key = args.get("margin_key")
    if key is None:
        return None
    value = _field(record, key, "margin_key", where)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: {key!r} must be a finite number, not {value!r}")
    return float(value)


def _field(record: dict[str, Any], key: str, knob: str, where: str) -> Any:
    if key not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: no field {key!r} ({knob}){nearest(key, record)}; fields there: {there}")
    return record[key]
