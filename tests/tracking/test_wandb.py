"""Weights & Biases, offline: what was logged is what its file holds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from stacx_core.tracking.tracker import Tracker
from stacx_core.tracking.wandb_run import WandbRun

FULL, LAST = 1, 4


def records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind a header of 7 bytes: blocks of 32 KiB; checksum, length and kind; data."""
    block, position, parts = 32768, 7, b""
    while position + 7 <= len(data):
        room = block - position % block
        if room < 7:
            position += room
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def logged(folder: Path) -> list[dict[str, Any]]:
    """The history rows of all runs under a folder; the parts of a nested value are joined by a slash."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


def test_a_late_evaluation_and_a_repeated_rollout_are_kept(
    host_args: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    args = host_args(wandb_mode="offline", output_dir=str(tmp_path))
    sent = [
        {"rollout": 1.0, "train/loss": 0.9},
        {"rollout": 2.0, "train/loss": 0.8},
        {"rollout": 3.0, "train/loss": 0.7},
        {"rollout": 2.0, "eval/reward_mean": 0.5},
        {"rollout": 3.0, "train/loss": 0.6},
    ]
    run = WandbRun(args, tmp_path)
    for metrics in sent:
        run.log(metrics)
    run.close()
    wandb.teardown()
    assert [{k: v for k, v in row.items() if k[0] != "_"} for row in logged(tmp_path)] == sent


def test_pictures_of_a_folder_are_shown_together(
    host_args: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sheets of samples and a curve of the second rollout; the files are kept beside the history."""
    from PIL import Image

    monkeypatch.setenv("WANDB_SILENT", "true")
    paths = [tmp_path / name for name in ("samples/a.png", "samples/b.png", "curves/loss.png")]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    tracker = Tracker(host_args(wandb_mode="offline", output_dir=str(tmp_path)), total=3, resumed_at=0)
    tracker.show(paths, rollout=2)
    tracker.show((), rollout=3)
    tracker.close()
    wandb.teardown()
    (row,) = logged(tmp_path)
    assert row["rollout"] == 2.0
    assert (row["samples/_type"], row["samples/count"], row["curves/count"]) == ("images/separated", 2, 1)
    kept = [path.name for path in tmp_path.glob("wandb/offline-run-*/files/media/images/*")]
    assert sorted(name.partition("_")[0] for name in kept) == ["curves", "samples", "samples"]


def test_without_wandb_pictures_stay_in_their_folder(host_args: Any, tmp_path: Path) -> None:
    tracker = Tracker(host_args(output_dir=str(tmp_path)), total=3, resumed_at=0)
    tracker.show([tmp_path / "samples" / "a.png"], rollout=2)
    tracker.close()
    assert not (tmp_path / "wandb").exists()
