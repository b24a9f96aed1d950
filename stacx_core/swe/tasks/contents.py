"""What tasks hold, in a few digits, so that nothing goes on with others than it began with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from stacx_core.swe.tasks.task import Task


def tasks_fingerprint(tasks: Iterable[Task]) -> str:
    """16 hex digits of a hash of the names of tasks and of every file of theirs but the solution's."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(task.name).encode())
        for path in sorted(task.folder.rglob("*")):
            name = path.relative_to(task.folder).as_posix()
            if path.is_file() and not name.startswith("solution/") and "__pycache__" not in path.parts:
                digest.update(json.dumps([name, hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()[:16]
