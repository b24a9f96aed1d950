"""Checkpoints that are finished while the run goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stacx_core import CheckpointError
from stacx_core.trainer.checkpoints import find_checkpoint
from stacx_core.trainer.saving import Saver


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"weights")


def nothing() -> None:
    """All files are written."""


def fail() -> None:
    raise OSError("no space left")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_absent_until_its_files_are_written(tmp_path: Path) -> None:
    may_finish = threading.Event()
    with Saver(tmp_path, keep=2, background=True) as saver:
        saver.save(1, write, nothing)
        saver.save(2, write, lambda: may_finish.wait() and None)
        assert names(tmp_path) == [".writing-rollout_000002", "latest", "rollout_000001"]
        assert find_checkpoint(tmp_path, "auto") == tmp_path / "rollout_000001"
        may_finish.set()
    assert names(tmp_path) == ["latest", "rollout_000001", "rollout_000002"]
    assert find_checkpoint(tmp_path, "latest") == tmp_path / "rollout_000002"


def test_the_next_save_tells_of_an_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot save .*rollout_000002: no space left"):
        with Saver(tmp_path, keep=1, background=True) as saver:
            saver.save(1, write, nothing)
            saver.save(2, write, fail)
            saver.save(3, write, nothing)
    assert names(tmp_path) == ["latest", "rollout_000001"]


def test_the_end_tells_of_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no space left"), Saver(tmp_path, keep=1, background=True) as saver:
        saver.save(1, write, fail)


def test_what_ended_the_run_comes_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), Saver(tmp_path, keep=1, background=True) as saver:
        saver.save(1, write, fail)
        raise ZeroDivisionError
    assert "cannot save" in caplog.text


def test_in_the_foreground_an_error_comes_at_once(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1, background=False)
    with pytest.raises(CheckpointError, match="no space left"):
        saver.save(1, write, fail)
    saver.save(2, write, nothing)
    assert names(tmp_path) == ["latest", "rollout_000002"]
