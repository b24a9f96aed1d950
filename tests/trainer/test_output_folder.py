"""One run at a time in a folder, and no branch of an abandoned run left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from stacx_core.errors import CheckpointError, ConfigError
from stacx_core.trainer.checkpoints import find_checkpoint, set_aside_newer, write_checkpoint
from stacx_core.trainer.output_folder import claimed


def test_a_second_run_in_the_folder_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claimed(folder), pytest.raises(ConfigError, match="another run is writing"), claimed(folder):
        pass
    with claimed(folder):
        (folder / "metrics.jsonl").touch()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "metrics.jsonl"]


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with claimed(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match="cannot be written"), claimed(tmp_path / "run"):
        pass


def test_a_full_disk_is_said_to_be_one(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=r"run can no longer be written: .*No space left"),
        claimed(tmp_path / "run"),
    ):
        Path("/dev/full").write_text("metrics")


def write(folder: Path) -> None:
    (folder / "weights").write_text("1")


def test_checkpoints_beyond_the_one_resumed_from_are_set_aside(tmp_path: Path) -> None:
    for rollout in (2, 4, 6):
        write_checkpoint(tmp_path, rollout, write, keep=9)
    chosen = find_checkpoint(tmp_path, "rollout_000002")
    assert chosen is not None
    set_aside_newer(tmp_path, chosen)
    assert find_checkpoint(tmp_path, "auto") == tmp_path / "rollout_000002"
    assert (tmp_path / "superseded_0_rollout_000006" / "weights").read_text() == "1"


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 2, write, keep=9)
    (tmp_path / "rollout_000002" / "weights").write_text("")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        find_checkpoint(tmp_path, "auto")
