"""The folder of an evaluation: one line for each episode that ended, and what they depend on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stacx_core.errors import ConfigError, DataError
from stacx_core.swe.evaluation.trajectory import Trajectory

EPISODES, SETTINGS = "episodes.jsonl", "settings.json"


class Journal:
    """Keeps the episodes of one evaluation; of a killed one, all but a line that was half written.

    Args:
        folder: Made when missing.
        settings: Whatever the episodes depend on.

    Raises:
        ConfigError: The folder has episodes of other settings, or something else.
        DataError: A line of it is damaged.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / EPISODES
        _drop_half_line(self.file)
        _claim(folder, json.loads(json.dumps(settings)), begun=self.file.exists() and self.file.stat().st_size > 0)
        self._newest = {_place(trajectory): trajectory for trajectory in read_episodes(self.file)}

    def add(self, trajectory: Trajectory) -> None:
        """Append an episode."""
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(trajectory.record()) + "\n")
        self._newest[_place(trajectory)] = trajectory

    def has(self, task: str, sample: int) -> bool:
        """Whether an episode is there, and not as an infrastructure error."""
        found = self._newest.get((task, sample))
        return found is not None and not found.failed

    def trajectories(self, tasks: Iterable[str], samples: int) -> list[Trajectory]:
        """The newest episode of each of the first ``samples`` of every task, where there is one."""
        places = ((task, sample) for task in tasks for sample in range(samples))
        return [self._newest[place] for place in places if place in self._newest]


def read_episodes(file: Path) -> list[Trajectory]:
    """All episodes of a file, in the order in which they ended.

    Raises:
        DataError: A line is none.
    """
    found = []
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        try:
            found.append(Trajectory.of_record(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}, line {number}: no episode of an evaluation: {error!r}") from error
    return found


def _place(trajectory: Trajectory) -> tuple[str, int]:
    return trajectory.task, trajectory.sample


def _claim(folder: Path, settings: dict[str, Any], begun: bool) -> None:
    file = folder / SETTINGS
    others = [child.name for child in folder.iterdir() if not child.name.startswith(".")]
    if others and SETTINGS not in others:
        raise ConfigError(f"{folder} is not empty (it has {others[0]}) and is no evaluation; choose another folder")
    if not begun:
        part = folder / f".{SETTINGS}"
        part.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    changes = [
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in {**before, **settings}
        if before.get(name) != settings.get(name)
    ]
    if changes:
        raise ConfigError(
            f"{folder} has episodes of another evaluation: {'; '.join(changes)}", "choose another --output-dir"
        )


def _drop_half_line(file: Path) -> None:
    if file.exists():
        data = file.read_bytes()
        if not data.endswith(b"\n"):
            with file.open("r+b") as lines:
                lines.truncate(data.rfind(b"\n") + 1)
