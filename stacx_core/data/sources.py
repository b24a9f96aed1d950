"""Readers of prompt data; each yields (where, record), `where` naming file and line or row from 1."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from stacx_core.errors import ConfigError, DataError, StacxError, nearest

Record = tuple[str, Any]


def read_jsonl(path: Path) -> Iterator[Record]:
    """Records of a UTF-8 file with one JSON value per line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: not UTF-8: {error}") from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: not JSON: {error}") from error


def read_parquet(path: Path) -> Iterator[Record]:
    """Records of a Parquet file, read batch by batch."""
    parquet = require("pyarrow.parquet", "data", "reading Parquet")
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches():
        for record in batch.to_pylist():
            number += 1
            yield f"{path}, row {number}", record


def read_dataset_folder(path: Path) -> Iterator[Record]:
    """Records of a folder that Hugging Face `Dataset.save_to_disk` wrote; one split of a `DatasetDict`."""
    if (path / "dataset_dict.json").exists():
        splits = ", ".join(sorted(child.name for child in path.iterdir() if child.is_dir()))
        raise DataError(f"{path} holds several splits: {splits}", f"name one of them, as in {path / 'train'}")
    if not (path / "state.json").exists():
        raise DataError(f"{path} is a folder, but not one that `Dataset.save_to_disk` wrote")
    datasets = require("datasets", "data", "reading a Hugging Face dataset folder")
    for number, record in enumerate(datasets.load_from_disk(str(path)), start=1):
        yield f"{path}, row {number}", record


FILE_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {".jsonl": read_jsonl, ".parquet": read_parquet}
"""Reader by file suffix."""


def read_records(source: str) -> Iterator[Record]:
    """Records of a JSONL file, a Parquet file or a Hugging Face dataset folder.

    Raises:
        DataError: the path does not exist, is of no known kind, or holds a record that cannot be read.
        ConfigError: the reader needs a package that is not installed.
    """
    path = Path(source)
    if not path.exists():
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"prompt data {source!r} does not exist{nearest(path.name, siblings)}")
    if path.is_dir():
        return _readable(path, read_dataset_folder)
    if path.suffix not in FILE_READERS:
        kinds = ", ".join(FILE_READERS)
        raise DataError(
            f"prompt data {source!r} has the suffix {path.suffix!r}; it must be one of {kinds}, "
            "a folder written by `Dataset.save_to_disk`, or reasoning_gym:NAME"
        )
    return _readable(path, FILE_READERS[path.suffix])


def _readable(path: Path, read: Callable[[Path], Iterator[Record]]) -> Iterator[Record]:
    """The records, with whatever a library raises for a damaged file turned into a `DataError`."""
    try:
        yield from read(path)
    except StacxError:
        raise
    except Exception as error:
        raise DataError(f"{path} is damaged, or not what its name says: {error}") from error


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or raise `ConfigError` naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {module.partition('.')[0]!r}: {error}", f"pip install 'stacx-core[{extra}]'"
        ) from error


def named_options(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of `NAME[?OPTION=VALUE&...]`; a value is JSON where it can be, else text.

    Raises:
        ConfigError: An option stands there twice.
    """
    name, _, query = text.partition("?")
    options = dict[str, Any]()
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in options:
            raise ConfigError(f"{text!r}: the option {key!r} stands there twice")
        options[key] = _value(value)
    return name, options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
