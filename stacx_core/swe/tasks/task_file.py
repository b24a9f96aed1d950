"""Values of ``task.toml``: each is checked, and an error names file, key, value and what would be right."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stacx_core.errors import DataError, nearest

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMG])", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LONGEST, _MOST = 1e9, 10_000_000
"""Seconds, and numbers of anything else, that no task can mean."""


def read_text(file: Path) -> str:
    """The text of a file that somebody wrote, in UTF-8, with or without a byte order mark.

    Raises:
        DataError: It cannot be read, is not UTF-8, or has a zero byte.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error}") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    if "\0" in text:
        raise DataError(f"{file} has a zero byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
    return text


def is_variable(name: str) -> bool:
    """Whether an environment variable can have this name in every shell."""
    return _VARIABLE.fullmatch(name) is not None


class TaskTable:
    """One table of a ``task.toml``.

    Args:
        file: The file, for messages.
        name: The table's name, "" for the whole file.
        values: What it has.
        known: Every key that it may have.

    Raises:
        DataError: It has a key that is not known.
    """

    def __init__(self, file: Path, name: str, values: dict[str, Any], known: Iterable[str]) -> None:
        self._file, self._name, self._values = file, name, values
        known = sorted(known)
        for key in values:
            if key not in known:
                raise self._error(key, f"no such key{nearest(key, known)}; there are {', '.join(known)}")

    @classmethod
    def read(cls, file: Path, known: Iterable[str]) -> TaskTable:
        """The whole file."""
        text = read_text(file)
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} is not valid TOML: {error}") from error
        return cls(file, "", values, known)

    def table(self, key: str, known: Iterable[str]) -> TaskTable:
        """A table in it; empty when it is not there."""
        return TaskTable(self._file, self._full(key), self.mapping(key), known)

    def mapping(self, key: str) -> dict[str, Any]:
        """A table in it whose keys are free."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            raise self._error(key, f"must be a table, not {value!r}")
        return value

    def seconds(self, key: str, default: float) -> float:
        """A positive number of seconds."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LONGEST:
            raise self._error(
                key, f"must be a number of seconds above 0 and below {_LONGEST:.0e}, such as {default}, not {value!r}"
            )
        return float(value)

    def count(self, key: str, default: int, minimum: int = 1) -> int:
        """A whole number that is not absurd."""
        value = self._values.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MOST:
            raise self._error(
                key, f"must be a whole number from {minimum} to {_MOST}, such as {default}, not {value!r}"
            )
        return value

    def mib(self, key: str, default: int) -> int:
        """A size in MiB, from ``KEY_mb`` or from the older ``KEY``, which has a unit ("2G")."""
        if key not in self._values:
            return self.count(f"{key}_mb", default)
        if f"{key}_mb" in self._values:
            raise self._error(key, f"says the same as {key}_mb; take one of them away")
        value = self._values[key]
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        size = float(found[1]) * _MIB[found[2].upper()] if found else 0.0
        if not 1 <= size <= _MOST:
            raise self._error(key, f"must be a size of at least '1M', such as '512M' or '2G', not {value!r}")
        return int(size)

    def text(self, key: str) -> str | None:
        """A text that may be missing."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self._error(key, f"must be a text, not {value!r}")
        return value

    def variables(self, key: str = "env") -> dict[str, str]:
        """A table of environment variables; values of the host's own environment are not taken over."""
        for name, value in self.mapping(key).items():
            if not is_variable(name):
                raise self._error(f"{key}.{name!r}", "is no name of a variable: letters, digits and _ make one")
            if not isinstance(value, str) or "\0" in value:
                raise self._error(f"{key}.{name}", f"must be a text, not {value!r}")
            if "${" in value:
                raise self._error(
                    f"{key}.{name}", f"must be a plain text, not {value!r}: a sandbox gets no variables of the host"
                )
        return dict(self.mapping(key))

    def refuse(self, key: str, reason: str) -> None:
        """Raise if the key is there and not empty, zero or false."""
        if self._values.get(key):
            raise self._error(key, f"{self._values[key]!r} is not possible: {reason}")

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _error(self, key: str, problem: str) -> DataError:
        return DataError(f"{self._file}: {self._full(key)}: {problem}")
