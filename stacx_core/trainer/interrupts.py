"""Ctrl-C that never loses an update, and failures that reach the main thread from another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from stacx_core.errors import ExitCode, StacxError


class BrokenOffError(BaseException):
    """Takes the main thread out of what it does, and is caught by nothing that catches errors of others' code.

    Args:
        error: What the run ends with.
    """

    def __init__(self, error: StacxError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def broken_off() -> Iterator[None]:
    """Raise the error of a :class:`BrokenOffError` in its place."""
    try:
        yield
    except BrokenOffError as breaking:
        raise breaking.error from None


class Interrupts:
    """Turns SIGINT and SIGTERM into ``KeyboardInterrupt`` at a point where the state is consistent.

    While weights change the signal waits; elsewhere it takes effect at once. A second signal ends the process with
    exit code 130 and no checkpoint.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the two signals within the block."""
        old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait until the block is done."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            os.write(2, b"error: interrupted again, without saving\n")
            raise SystemExit(ExitCode.INTERRUPTED)
        self._pending = True
        if not self._held:
            raise KeyboardInterrupt
