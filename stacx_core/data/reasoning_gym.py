"""Generated tasks of the reasoning-gym package as prompts; the package is imported on first use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from stacx_core.data.sources import require
from stacx_core.errors import DataError, nearest

SCHEME = "reasoning_gym:"
EXTRA = "reasoning-gym"
DEFAULT_SIZE = 1000
"""Items generated when the source names no size."""


def reasoning_gym_items(source: str, seed: int) -> Iterator[tuple[str, str | None, int, dict[str, Any], str]]:
    """Items of `reasoning_gym:NAME[?size=N&seed=N&OPTION=VALUE]` as (prompt, label, index, metadata, where).

    The metadata is what the `reasoning_gym` reward scores against: `{"dataset": NAME, "entry": item}`.

    Raises:
        DataError: unknown data set, or an option it does not take.
        ConfigError: the package is not installed.
    """
    name, _, query = source.removeprefix(SCHEME).partition("?")
    package = require("reasoning_gym", EXTRA, f"prompt data {source!r}")
    known = package.factory.DATASETS
    if name not in known:
        raise DataError(
            f"reasoning_gym has no data set {name!r}{nearest(name, known)}; it has {', '.join(sorted(known))}"
        )
    options = {"size": DEFAULT_SIZE, "seed": seed} | {key: _value(text) for key, text in parse_qsl(query)}
    try:
        dataset = package.create_dataset(name, **options)
        for index, entry in enumerate(dataset):
            yield (
                entry["question"],
                entry["answer"],
                index,
                {"dataset": name, "entry": entry},
                f"{source}, item {index}",
            )
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"prompt data {source!r}: {error}") from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
