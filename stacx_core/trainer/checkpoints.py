"""Checkpoints that are either whole or not there.

A checkpoint is written into a temporary folder and renamed when every file is on disk; its manifest, written last,
lists the size and SHA-256 of each file. Resuming verifies the manifest, so a damaged checkpoint is never picked up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stacx_core.errors import CheckpointError, WorkerError

MANIFEST = "manifest.json"
LATEST = "latest"
_TEMPORARY = ".writing-"

logger = logging.getLogger(__name__)


def checkpoint_name(rollout: int) -> str:
    """Folder name of the checkpoint after ``rollout`` rollouts."""
    return f"rollout_{rollout:06d}"


def write_checkpoint(folder: Path, rollout: int, write: Callable[[Path], None], keep: int) -> Path:
    """Write a checkpoint, point ``latest`` to it, then remove the oldest beyond ``keep``.

    Args:
        folder: The run's checkpoint folder.
        rollout: Rollouts completed.
        write: Puts the files into the folder it is given.
        keep: Whole checkpoints to keep, this one included.

    Raises:
        CheckpointError: It cannot be written, say because the disk is full; the earlier ones are as they were.
        WorkerError: A process that writes a part of it died.
    """
    begin_checkpoint(folder, rollout, write)
    return finish_checkpoint(folder, rollout, lambda: None, keep)


def begin_checkpoint(folder: Path, rollout: int, write: Callable[[Path], None]) -> None:
    """The first half of :func:`write_checkpoint`; ``write`` may go on writing when it returns."""
    with _whole_or_absent(folder, rollout) as temporary:
        remove_unfinished(folder)
        temporary.mkdir(parents=True)
        write(temporary)


def finish_checkpoint(folder: Path, rollout: int, written: Callable[[], None], keep: int) -> Path:
    """The second half of :func:`write_checkpoint`, once ``written`` has returned because all files are written."""
    final = folder / checkpoint_name(rollout)
    with _whole_or_absent(folder, rollout) as temporary:
        written()
        files = {str(p.relative_to(temporary)): _fingerprint(p) for p in sorted(temporary.rglob("*")) if p.is_file()}
        (temporary / MANIFEST).write_text(json.dumps(files, indent=1))
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
    if final.exists():
        shutil.rmtree(final)
    os.rename(temporary, final)
    _flush(folder)
    _point(folder, final)
    for old in sorted(p for p in folder.glob("rollout_*") if p.name < final.name)[: -(keep - 1) or None]:
        shutil.rmtree(old)
    return final


@contextmanager
def _whole_or_absent(folder: Path, rollout: int) -> Iterator[Path]:
    """The temporary folder of a checkpoint, gone if something goes wrong.

    Raises:
        CheckpointError: Something did.
        WorkerError: A process that writes a part of it died.
    """
    final = folder / checkpoint_name(rollout)
    temporary = folder / (_TEMPORARY + final.name)
    try:
        yield temporary
    except WorkerError:  # not the disk's fault
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except Exception as error:  # a full disk is an OSError, a RuntimeError or a bare Exception, by what is written
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"cannot save {final}: {error}",
            "the earlier checkpoints are as they were; mend the cause, then go on with --resume",
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed save left behind."""
    for leftover in folder.glob(_TEMPORARY + "*"):
        if leftover.is_symlink():
            leftover.unlink()
        else:
            shutil.rmtree(leftover)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or ``None`` when every file is there and unchanged."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"no readable {MANIFEST}: its save was not finished"
    for name, fingerprint in manifest.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _fingerprint(path) != fingerprint:
            return f"{name} is truncated or changed"
    return None


def find_checkpoint(folder: Path, resume: str) -> Path | None:
    """The checkpoint to resume from.

    Args:
        folder: The run's checkpoint folder.
        resume: ``auto`` for the newest whole one, else the path or the name of one.

    Returns:
        Its folder; ``None`` for ``auto`` when there is no checkpoint yet.

    Raises:
        CheckpointError: The named checkpoint is missing or damaged, or there are checkpoints and none is whole.
    """
    if resume != "auto":
        named = folder / resume if (folder / resume).is_dir() else Path(resume)
        problem = damage(named) if named.is_dir() else "there is no such folder"
        if problem:
            raise CheckpointError(f"cannot resume from {resume}: {problem}; --resume auto takes the newest whole one")
        return named.resolve()
    candidates = sorted((p for p in folder.glob("rollout_*") if p.is_dir()), reverse=True)
    for candidate in candidates:
        problem = damage(candidate)
        if problem is None:
            return candidate
        logger.warning("skipping checkpoint %s: %s", candidate.name, problem)
    if candidates:
        raise CheckpointError(f"cannot resume: none of the {len(candidates)} checkpoints in {folder} is whole")
    return None


def set_aside_newer(folder: Path, checkpoint: Path) -> None:
    """Rename the checkpoints beyond the one resumed from, so that no later resume continues the abandoned branch."""
    for newer in [p for p in folder.glob("rollout_*") if p.name > checkpoint.name]:
        number = len(list(folder.glob(f"superseded_*_{newer.name}")))
        newer.rename(folder / f"superseded_{number}_{newer.name}")
        logger.warning("checkpoint %s is beyond the one resumed from and was set aside", newer.name)


def _fingerprint(path: Path) -> list[int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return [path.stat().st_size, digest]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point(folder: Path, final: Path) -> None:
    link = folder / (_TEMPORARY + LATEST)
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    os.replace(link, folder / LATEST)
