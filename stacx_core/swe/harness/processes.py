"""Harnesses as processes: bounded in time and output, and ended with everything that they started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from stacx_core.errors import EpisodeError
from stacx_core.rollout import keeper
from stacx_core.swe.sandboxes.supervisor import CHUNK, HeadTail

HARNESS_CRASHED = "harness_crashed"
"""What is counted when a harness ends with another exit code than 0 by its own doing."""
OUTPUT_LIMIT = 32_000
"""Bytes of a harness's output that are kept, half of them from its beginning and half from its end."""


@dataclass(frozen=True)
class Ended:
    """How a harness ended.

    Args:
        exit_code: Its exit code; 128 + N when signal N ended it.
        timed_out: Whether it was ended because it took too long.
        output: What it printed, perhaps without the middle.
    """

    exit_code: int
    timed_out: bool
    output: str


class Processes(AbstractContextManager["Processes"]):
    """The harnesses that are running; leaving the context ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def run(self, command: Sequence[str], folder: Path, env: Mapping[str, str], seconds: float) -> Ended:
        """Run a command to its end, and end whatever it left behind.

        Args:
            command: Its words.
            folder: Where it starts; it is gone afterwards, even if this process is killed.
            env: All its variables.
            seconds: After which it is ended.

        Raises:
            EpisodeError: The context was left.
            OSError: It cannot be started.
        """
        process = self._started(command, folder, env)
        late = threading.Event()

        def expire() -> None:
            late.set()
            process.terminate()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            output = _read(process)
            return Ended(process.wait(), late.is_set(), output)
        finally:
            timer.cancel()
            with self._lock:
                self._running.discard(process)

    def _started(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The keeper of the command, in a session of its own: a Ctrl-C in the terminal reaches the run only."""
        words = [sys.executable, "-I", keeper.__file__, str(os.getpid()), keeper.REMOVE, str(folder), *command]
        with self._lock:
            if self._over:
                raise EpisodeError("the rollout is over")
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
            for process in self._running:
                process.terminate()


def _read(process: subprocess.Popen[bytes]) -> str:
    kept = HeadTail(OUTPUT_LIMIT)
    assert process.stdout is not None
    with process.stdout as stream:
        while piece := os.read(stream.fileno(), CHUNK):
            kept.add(piece)
    head, tail, cut = kept.halves()
    middle = f"\n[... {cut} bytes left out ...]\n".encode() if cut else b""
    return (head + middle + tail).decode(errors="replace")
