"""Reads episodes to show: of an evaluation, or of a corpus that ``stacx collect`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from stacx_core.data.sample import ENVIRONMENT, STUDENT, TEACHER
from stacx_core.data.sources import read_jsonl
from stacx_core.errors import DataError
from stacx_core.swe.evaluation.trajectory import Part, Trajectory, Who

_WHO: dict[int, Who] = {ENVIRONMENT: "environment", STUDENT: "student", TEACHER: "teacher"}
Decode = Callable[[Sequence[int]], str]


def read_trajectories(file: Path, decode: Decode | None = None) -> list[Trajectory]:
    """The episodes of a file, in its order.

    Args:
        file: ``episodes.jsonl`` of an evaluation, or a shard of a corpus.
        decode: From token ids to text, which a corpus needs.

    Raises:
        DataError: There is no such file, or a line is no episode, or is one of a corpus and ``decode`` is missing.
    """
    if not file.is_file():
        raise DataError(f"there is no file {file}")
    found = []
    for number, (where, record) in enumerate(read_jsonl(file)):
        try:
            found.append(Trajectory.of_record(record) if "parts" in record else _of_corpus(record, number, decode))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{where}: no episode of an evaluation or a corpus: {error!r}") from error
    if not found:
        raise DataError(f"{file} has no episode")
    return found


def _of_corpus(record: Mapping[str, Any], number: int, decode: Decode | None) -> Trajectory:
    tokens, length = record["tokens"], record["response_length"]
    if decode is None:
        raise DataError("the episodes of a corpus are token ids", "name their tokenizer with --tokenizer")
    prompt = tokens[: len(tokens) - length]
    marks = zip(record["executor"], record["turn_ids"], record["loss_mask"], strict=True)
    written = zip(marks, tokens[len(tokens) - length :], strict=True)
    parts = [Part("environment", decode(prompt), len(prompt))]
    for (who, _, mask), pairs in groupby(written, key=lambda pair: pair[0]):
        ids = [token for _, token in pairs]
        parts.append(Part(_WHO[who], decode(ids), len(ids), mask))
    return Trajectory(record["task_id"], record.get("episode", number), record["outcome"], record["reward"], parts)
