"""An end to code of plugins that never returns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CHECK_SECONDS = 120.0
"""How long a check may take under one set of arguments: a hundred times what the slowest needs."""


class Hangs(BaseException):
    """Something did not return in time; no `Exception`, so that a plugin's `except Exception` does not catch it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `Hangs` in what runs inside after this time; other threads than the main one get no alarm."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"hangs: it did not return within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
