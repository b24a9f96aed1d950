"""Generated tasks of the reasoning-gym package as prompts; the package is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stacx_core.data.sources import named_options, require
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
    name, options = named_options(source.removeprefix(SCHEME))
    dataset = create_dataset(name, {"size": DEFAULT_SIZE, "seed": seed, **options}, f"prompt data {source!r}")
    try:
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


def create_dataset(name: str, options: dict[str, Any], what: str) -> Any:
    """The data set of a name with its options.

    Args:
        name: of the package's list.
        options: of the data set, `size` and `seed` among them.
        what: wants it, for error messages.

    Raises:
        DataError: unknown data set, or an option it does not take.
        ConfigError: the package is not installed.
    """
    package = require("reasoning_gym", EXTRA, what)
    known = package.factory.DATASETS
    if name not in known:
        raise DataError(
            f"reasoning_gym has no data set {name!r}{nearest(name, known)}; it has {', '.join(sorted(known))}"
        )
    try:
        return package.create_dataset(name, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"{what}: {error}") from error
