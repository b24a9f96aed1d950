"""The file of the counts."""

import json
from pathlib import Path


def save(path, counts):
    """Write the counts."""
    Path(path).write_text(json.dumps(counts), encoding="utf-8")


def load(path):
    """Read the counts; none if there is no file yet."""
    path = Path(path)
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))
