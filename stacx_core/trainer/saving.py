"""A run's checkpoints, written between rollouts or while the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from stacx_core.backends.writing import Writing
from stacx_core.trainer.checkpoints import begin_checkpoint, finish_checkpoint

logger = logging.getLogger(__name__)


class Saver:
    """Writes checkpoints; a context manager whose end waits for the last.

    Args:
        folder: The run's checkpoint folder.
        keep: Whole checkpoints to keep.
        background: Finish a checkpoint on a thread.
    """

    def __init__(self, folder: Path, keep: int, background: bool) -> None:
        self._folder, self._keep, self._background = folder, keep, background
        self._writing: Writing | None = None

    def save(self, rollout: int, write: Callable[[Path], None], written: Callable[[], None]) -> None:
        """Write the checkpoint after so many rollouts, when the one before is whole.

        Args:
            write: Puts the files into the folder it is given, or begins to.
            written: Returns when they are there. In the background it is called from a thread.

        Raises:
            CheckpointError: This one, or in the background the one before, cannot be written.
        """
        self.finish()
        begin_checkpoint(self._folder, rollout, write)
        finish = partial(finish_checkpoint, self._folder, rollout, written, self._keep)
        self._writing = Writing(finish, self._background)

    def finish(self) -> None:
        """Wait until the last checkpoint is whole.

        Raises:
            CheckpointError: It cannot be written.
        """
        writing = self._writing
        if writing is not None:
            writing.finish()
            self._writing = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.finish()
        except Exception as problem:
            if isinstance(error, Exception) and error is not problem:
                logger.error("%s", problem)  # the error on its way ends the run
                return
            raise
