"""The growing data set of DAgger: labelled episodes of earlier rollouts, drawn from again."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stacx_core import DataError, Sample, SampleStatus, sub_seed

FOLDER = "labels"
_STORED = (
    *("group_index", "prompt", "tokens", "response", "response_length", "reward", "executor", "turn_ids", "task_id"),
    "metadata",
)

LabelledEpisode = Sequence[Sample]
"""The labelled states of one episode."""


class LabelStore:
    """Labelled episodes on disk: a file per rollout, in it a line per episode.

    A rollout that a resumed run makes again replaces its file.

    Args:
        output_dir: folder of the run, in which ``labels`` is made; None keeps them in a temporary folder.
    """

    def __init__(self, output_dir: str | None) -> None:
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name if output_dir is None else output_dir) / FOLDER
        self._lines: dict[int, list[int]] = {}

    def add(self, rollout: int, episodes: Sequence[LabelledEpisode]) -> None:
        """Write the episodes of a rollout, wholly or not at all; those without a label are left out."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps([_stored(sample) for sample in episode]) + "\n" for episode in episodes if episode]
        temporary = self.folder / f".{rollout:06}.jsonl"
        temporary.write_text("".join(lines), encoding="utf-8")
        os.replace(temporary, self._path(rollout))
        self._lines[rollout] = _line_starts(self._path(rollout))

    def draw(self, rollout: int, count: int, seed: int) -> Iterator[LabelledEpisode]:
        """Episodes of the rollouts before this one, each as likely as the other and none twice; all if there are fewer.

        Args:
            rollout: number of the rollout that is being made.
            count: how many.
            seed: of the run; the same rollout and seed draw the same.

        Raises:
            DataError: the labels of an earlier rollout are missing or damaged.
        """
        kept = [(past, start) for past in range(rollout) for start in self._starts(past)]
        chosen = random.Random(sub_seed(seed, "replay", rollout)).sample(kept, min(count, len(kept)))
        for past, start in chosen:
            path = self._path(past)
            with path.open("rb") as file:
                file.seek(start)
                line = file.readline()
            try:
                yield [_sample(record) for record in json.loads(line)]
            except (ValueError, TypeError) as error:
                raise DataError(f"{path} is damaged: {error}", "start again in another --output-dir") from error

    def _starts(self, rollout: int) -> list[int]:
        if rollout not in self._lines:
            path = self._path(rollout)
            if not path.is_file():
                raise DataError(
                    f"{path} is missing: --dagger-replay draws from the labels of every earlier rollout",
                    "put the file back, or start again in another --output-dir",
                )
            self._lines[rollout] = _line_starts(path)
        return self._lines[rollout]

    def _path(self, rollout: int) -> Path:
        return self.folder / f"{rollout:06}.jsonl"


def _line_starts(path: Path) -> list[int]:
    starts, position = [], 0
    with path.open("rb") as file:
        for line in file:
            starts.append(position)
            position += len(line)
    return starts


def _stored(sample: Sample) -> dict[str, object]:
    return {name: getattr(sample, name) for name in _STORED}


def _sample(record: dict[str, object]) -> Sample:
    return Sample(status=SampleStatus.COMPLETED, **record)  # type: ignore[arg-type]
