"""Checkpoints are whole or not there."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stacx_core import CheckpointError
from stacx_core.trainer.checkpoints import find_checkpoint, write_checkpoint


def write(folder: Path) -> None:
    (folder / "policy").mkdir()
    (folder / "policy" / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "policy.optimizer.pt").write_bytes(b"moments" * 100)
    (folder / "trainer.json").write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints after rollouts 2 and 4."""
    for rollout in (2, 4):
        write_checkpoint(tmp_path, rollout, write, keep=3)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage_optimizer(checkpoint: Path) -> None:
    os.truncate(checkpoint / "policy.optimizer.pt", 10)


def flip_a_byte(checkpoint: Path) -> None:
    path = checkpoint / "policy" / "model.safetensors"
    path.write_bytes(b"W" + path.read_bytes()[1:])


DAMAGES = [
    (damage_optimizer, "policy.optimizer.pt is truncated or changed"),
    (flip_a_byte, "policy/model.safetensors is truncated or changed"),
    (lambda checkpoint: (checkpoint / "trainer.json").unlink(), "trainer.json is missing"),
    (lambda checkpoint: (checkpoint / "manifest.json").unlink(), "its save was not finished"),
    (lambda checkpoint: os.truncate(checkpoint / "manifest.json", 20), "its save was not finished"),
]


def test_the_newest_is_taken(folder: Path) -> None:
    assert find_checkpoint(folder, "auto") == folder / "rollout_000004"
    assert (folder / "latest").resolve() == (folder / "rollout_000004").resolve()


@pytest.mark.parametrize(("do_damage", "reason"), DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, do_damage: Any, reason: str
) -> None:
    do_damage(folder / "rollout_000004")
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(folder, "auto") == folder / "rollout_000002"
    assert "rollout_000004" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(("do_damage", "reason"), DAMAGES)
def test_a_damaged_one_asked_for_by_name_is_an_error(folder: Path, do_damage: Any, reason: str) -> None:
    do_damage(folder / "rollout_000004")
    for name in ("rollout_000004", str(folder / "rollout_000004")):
        with pytest.raises(CheckpointError) as error:
            find_checkpoint(folder, name)
        assert reason in str(error.value)


def test_one_may_be_named_or_missing(folder: Path) -> None:
    assert find_checkpoint(folder, "rollout_000002") == (folder / "rollout_000002").resolve()
    with pytest.raises(CheckpointError, match="cannot resume from rollout_000003: there is no such folder"):
        find_checkpoint(folder, "rollout_000003")
    assert find_checkpoint(folder / "none", "auto") is None


def test_a_failed_save_leaves_everything_as_it_was(folder: Path) -> None:
    before = names(folder)

    def fail(temporary: Path) -> None:
        write(temporary)
        raise OSError("no space left")

    with pytest.raises(CheckpointError, match=r"cannot save .*rollout_000006: no space left"):
        write_checkpoint(folder, 6, fail, keep=1)
    assert find_checkpoint(folder, "auto") == folder / "rollout_000004"
    assert (folder / "latest").resolve().name == "rollout_000004"
    assert names(folder) == before


def test_old_ones_go_only_once_the_new_one_is_whole(folder: Path) -> None:
    seen = []

    def look(temporary: Path) -> None:
        seen.extend(names(folder))
        write(temporary)

    write_checkpoint(folder, 6, look, keep=1)
    assert {"rollout_000002", "rollout_000004", "latest"} < set(seen)
    assert names(folder) == ["latest", "rollout_000006"]


def test_so_many_are_kept(folder: Path) -> None:
    write_checkpoint(folder, 6, write, keep=2)
    assert names(folder) == ["latest", "rollout_000004", "rollout_000006"]
