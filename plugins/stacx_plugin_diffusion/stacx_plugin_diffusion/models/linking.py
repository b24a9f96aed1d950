"""Frozen parts of a pipeline in a new checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def link_parts(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Put files and folders of one checkpoint into another, as hard links where the file system has them.

    What is not in the source is left out, and what is in the folder already is left as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for path in sorted([source / name, *(source / name).rglob("*")]):
            target = folder / path.relative_to(source)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(path, target)


def _link(path: Path, target: Path) -> None:
    try:
        # Downloads are symbolic links into a cache, of which a checkpoint must not depend.
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
