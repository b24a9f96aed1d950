"""``metrics.jsonl``: one line per rollout, the same for a resumed run as for an unbroken one but for ``time/`` keys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class MetricsFile:
    """Appends lines, each handed to the system at once, so that a killed process loses none.

    Args:
        path: The file; made when missing.
        resumed_at: Rollouts completed at the checkpoint a run resumes from, 0 for a run that starts at the beginning.
            Lines that an earlier process wrote and this one writes again are moved to ``metrics.superseded.jsonl``.
    """

    def __init__(self, path: Path, resumed_at: int) -> None:
        self.path = path
        if path.exists():
            self._rewind(resumed_at)
        self._file = path.open("a", encoding="utf-8")

    def _rewind(self, resumed_at: int) -> None:
        kept: list[str] = []
        superseded: list[str] = []
        for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True):
            done = resumed_at > 0 and _rollout_of(line) <= resumed_at
            (kept if done else superseded).append(line)
        if superseded:
            with self.path.with_suffix(".superseded.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(superseded)
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("".join(kept), encoding="utf-8")
            os.replace(temporary, self.path)

    def write(self, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        self._file.write(json.dumps(dict(metrics)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rollout_of(line: str) -> float:
    """The rollout a line is about; infinite for one cut short by a kill."""
    try:
        return float(json.loads(line)["rollout"])
    except ValueError:
        return float("inf")
