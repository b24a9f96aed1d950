"""Fields of a row of a JSONL file, and the pictures it names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from stacx_core import DataError, nearest
from stacx_plugin_diffusion.pictures import from_picture


def as_row(record: Any, where: str) -> dict[str, Any]:
    """A record that is an object.

    Raises:
        DataError: It is something else.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: a row must be an object with named fields, not {type(record).__name__}")
    return record


def text_field(row: dict[str, Any], name: str, where: str) -> str:
    """A field that is text and not blank.

    Raises:
        DataError: It is absent, blank, or no text.
    """
    if name not in row:
        raise DataError(f"{where}: no field {name!r}{nearest(name, row)}; the row has {', '.join(row) or 'none'}")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name!r} must be text that is not blank, not {value!r}")
    return value


def weight_field(row: dict[str, Any], where: str) -> float | None:
    """The field `weight`, a finite number of at least 0, if it is there.

    Raises:
        DataError: It is something else.
    """
    value = row.get("weight")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: 'weight' must be a finite number of at least 0, not {value!r}")
    return float(value)


def label_field(row: dict[str, Any], where: str) -> int | None:
    """The field `label`, the number of a class, if it is there.

    Raises:
        DataError: It is something else.
    """
    value = row.get("label")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise DataError(f"{where}: 'label' must be the number of a class, not {value!r}")


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        DataError: It is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}") from error


def existing(path: Path, where: str) -> Path:
    """The path of an image that is there.

    Raises:
        DataError: It is not; names where it was named.
    """
    if not path.is_file():
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{where}: no image {str(path)!r}{nearest(path.name, siblings)}")
    return path


def read_picture(path: Path, channels: int, where: str) -> Tensor:
    """``[channels, H, W]`` fp32 in [0, 1] of an image file.

    Raises:
        DataError: There is none, or it cannot be decoded; names where it was named.
    """
    try:
        with Image.open(existing(path, where)) as picture:
            return from_picture(picture, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{where}: {str(path)!r} is no image that can be read: {error}", "repair or remove it"
        ) from error
