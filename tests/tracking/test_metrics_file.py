"""`metrics.jsonl` of a run that was killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stacx_core.tracking.metrics_file import MetricsFile


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, resumed_at: int, *rollouts: int) -> None:
    file = MetricsFile(path, resumed_at)
    for rollout in rollouts:
        file.write({"rollout": rollout, "try": resumed_at})
    file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_each_line_is_on_disk_when_it_is_written(path: Path) -> None:
    file = MetricsFile(path, 0)
    file.write({"rollout": 1, "train/loss": 0.5})
    assert lines(path) == [{"rollout": 1, "train/loss": 0.5}]
    file.close()


def test_resuming_moves_later_lines_aside(path: Path) -> None:
    write(path, 0, 0, 1, 2, 3)
    write(path, 2, 3, 4)
    assert lines(path) == [{"rollout": r, "try": t} for r, t in ((0, 0), (1, 0), (2, 0), (3, 2), (4, 2))]
    assert lines(path.with_suffix(".superseded.jsonl")) == [{"rollout": 3, "try": 0}]


def test_a_line_cut_short_by_a_kill_is_moved_aside(path: Path) -> None:
    write(path, 0, 1, 2)
    with path.open("a") as file:
        file.write('{"rollout": 3, "train/lo')
    write(path, 2, 3)
    assert [line["rollout"] for line in lines(path)] == [1, 2, 3]


def test_a_run_killed_before_its_first_checkpoint_starts_over(path: Path) -> None:
    write(path, 0, 0, 1)
    write(path, 0, 0, 1, 2)
    assert [line["rollout"] for line in lines(path)] == [0, 1, 2]
    assert [line["rollout"] for line in lines(path.with_suffix(".superseded.jsonl"))] == [0, 1]
