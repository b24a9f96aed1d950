"""The output folder of a run belongs to one process at a time."""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stacx_core.errors import CheckpointError, ConfigError

LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder, made when missing, within the block; one that stays empty is removed.

    The system gives the lock back when the process ends, however it ends.

    Raises:
        ConfigError: The folder cannot be made, or another run is writing there.
        CheckpointError: The disk is full, or can no longer be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"--output-dir {folder} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another run is writing to {folder}; choose another --output-dir") from error
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise CheckpointError(
                f"{folder} can no longer be written: {error}", "mend the cause, then go on with --resume"
            ) from error
        finally:
            if [path.name for path in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
