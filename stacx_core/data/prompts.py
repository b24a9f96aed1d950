"""Prompt rows: read and checked from a source, and dealt out in an order that a resumed run repeats."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

from stacx_core.data.reasoning_gym import SCHEME, reasoning_gym_items
from stacx_core.data.sample import Message
from stacx_core.data.sources import read_records
from stacx_core.errors import CheckpointError, DataError, nearest
from stacx_core.seeds import sub_seed

Row = TypeVar("Row")


@dataclass(frozen=True)
class PromptRow:
    """One row of the prompt data.

    Fields:
        prompt: text or chat messages.
        label: ground truth, or the response to learn; None when the source has none.
        index: 0-based position in the source.
        metadata: every further field of the row.
        where: file and line or row, for error messages.
    """

    prompt: str | list[Message]
    label: str | None
    index: int
    metadata: dict[str, Any] = field(default_factory=dict)
    where: str = ""


def load_prompts(source: str, *, input_key: str, label_key: str | None, seed: int = 0) -> list[PromptRow]:
    """Read all rows of a prompt source.

    Args:
        source: a .jsonl or .parquet file, a folder written by `Dataset.save_to_disk`, or
            `reasoning_gym:NAME[?size=N&seed=N&OPTION=VALUE]`, which brings its own keys.
        input_key: field with the prompt, a string or a list of chat messages.
        label_key: field with the label, a string or a number; None for data without labels.
        seed: of a procedurally generated source that names none.

    Raises:
        DataError: naming the file and the line or row that is malformed; or the source has no row.
        ConfigError: the source needs a package that is not installed.
    """
    if source.startswith(SCHEME):
        rows = [PromptRow(*item) for item in reasoning_gym_items(source, seed)]
    else:
        records = enumerate(read_records(source))
        rows = [_row(record, where, index, input_key, label_key) for index, (where, record) in records]
    if not rows:
        raise DataError(f"prompt data {source!r} has no row")
    return rows


def _row(record: Any, where: str, index: int, input_key: str, label_key: str | None) -> PromptRow:
    if not isinstance(record, dict):
        raise DataError(f"{where}: a row must be an object with named fields, not {type(record).__name__}")
    prompt = parse_prompt(_field(record, input_key, "input_key", where), f"{where}: {input_key!r}")
    label = None
    if label_key is not None:
        label = _label(_field(record, label_key, "label_key", where), f"{where}: {label_key!r}")
    _require_text([prompt, label], where)
    metadata = {key: value for key, value in record.items() if key not in (input_key, label_key)}
    return PromptRow(prompt, label, index, metadata, where)


def _field(record: dict[str, Any], key: str, knob: str, where: str) -> Any:
    if key not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: no field {key!r} ({knob}){nearest(key, record)}; fields there: {there}")
    return record[key]


def parse_prompt(value: Any, what: str) -> str | list[Message]:
    """A prompt as a data set holds it: text that is not blank, or at least one chat message.

    Args:
        value: of the prompt's column.
        what: names file, line and column in an error.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{what} is empty")
        return value
    if not isinstance(value, list):
        raise DataError(f"{what} must be a string or a list of chat messages, not {type(value).__name__}")
    if not value:
        raise DataError(f"{what} has no message")
    return [_message(message, f"{what}, message {number}") for number, message in enumerate(value, start=1)]


def _message(value: Any, what: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f"{what} must be an object with 'role' and 'content', not {type(value).__name__}")
    for key in ("role", "content"):
        if not isinstance(value.get(key), str):
            raise DataError(f"{what}: {key!r} must be a string, not {type(value.get(key)).__name__}")
    return {key: entry for key, entry in value.items() if entry is not None}


def _require_text(value: Any, where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can write and no tokenizer takes."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(
            f"{where}: the prompt or the label holds {half!r}, half a surrogate pair, no character"
        ) from error


def _label(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{what} must be a string or a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise DataError(f"{what} is {value}; a label must be finite")
    return str(value)


def fingerprint(rows: Iterable[Any]) -> str:
    """16 hex digits of a hash of what the rows hold, in their order, wherever the file lies."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, skipkeys=True, default=_plain).encode() + b"\n")
    return digest.hexdigest()[:16]


_NAMES = ("where", "task_id")
"""Fields that only name a row in messages."""


def _plain(value: Any) -> Any:
    """What JSON can hold of a value; an unknown object counts by its type, since its text may hold an address."""
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value) if field.name not in _NAMES]
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


_ORDER = {
    "rows": "the number of prompt rows",
    "content": "the fingerprint of the prompts",
    "seed": "--seed",
    "shuffle": "--rollout-shuffle",
}
"""What the order of the prompts follows from, as in the state of a `PromptStream`, and how messages call it."""


class PromptStream(Generic[Row]):
    """Endless passes over the rows; the order of pass `epoch` depends on the seed and `epoch` alone.

    Args:
        rows: at least one.
        seed: the run's seed; each epoch is permuted by the sub-seed ("prompts", epoch).
        shuffle: False keeps the order of the source in every epoch.
    """

    def __init__(self, rows: Sequence[Row], seed: int, shuffle: bool) -> None:
        if not rows:
            raise DataError("the prompt data has no row")
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._content = fingerprint(rows)
        self._epoch = 0
        self._position = 0
        self._order = self._permutation()

    def take(self, count: int) -> list[Row]:
        """The next `count` rows; crosses into following epochs as often as needed."""
        taken: list[Row] = []
        while len(taken) < count:
            if self._position == len(self._rows):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._permutation()
            chosen = self._order[self._position : self._position + count - len(taken)]
            taken.extend(self._rows[index] for index in chosen)
            self._position += len(chosen)
        return taken

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: `epoch`, `position` within it, and what the order of the prompts follows from."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "rows": len(self._rows),
            "content": self._content,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: the data, the seed or the shuffling is another, so that other prompts would follow.
        """
        now = self.state()
        changes = [
            f"{name} was {state.get(key)} and is {now[key]}"
            for key, name in _ORDER.items()
            if state.get(key) != now[key]
        ]
        if changes:
            raise CheckpointError(
                f"cannot resume with other prompts: {'; '.join(changes)}",
                "resume with the data, the limits of length, --seed and --rollout-shuffle that the run began with",
                "or start a new run from the weights of the checkpoint, with --hf-checkpoint",
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._permutation()

    def _permutation(self) -> list[int]:
        order = list(range(len(self._rows)))
        if self._shuffle:
            random.Random(sub_seed(self._seed, "prompts", self._epoch)).shuffle(order)
        return order
