"""What a sandbox is, whoever makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stacx_core.swe.tasks import Task

OUTPUT_LIMIT = 32_000
"""Bytes of a command's output that are kept, half of them from its beginning and half from its end."""
TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
"""Where the tests, what they write, and the solution lie in a sandbox."""


@dataclass(frozen=True)
class CommandResult:
    """What a command did.

    Args:
        output: Its standard output and error as they came, with a line in the middle that counts what was left out.
        exit_code: Its exit code; 128 + N when signal N ended it.
        timed_out: Whether it was ended because it took too long.
        truncated: Bytes left out of the middle of the output.
        limit: What it used too much of: "time", "memory", "files" (and sockets and terminals), or "" for nothing.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    truncated: int = 0
    limit: str = ""


class Sandbox(Protocol):
    """Where one episode works. One thread at a time uses it.

    Every method but ``close`` raises ``SandboxError`` when the sandbox is gone.
    """

    @property
    def workdir(self) -> str:
        """The folder that commands start in."""

    def run(self, command: str, timeout: float, env: Mapping[str, str] | None = None) -> CommandResult:
        """Run a bash command in a shell of its own.

        Args:
            command: What follows ``bash -c``.
            timeout: Seconds after which it is ended, with what it left in the background.
            env: Variables besides those of the task.
        """

    def write(self, path: str, data: bytes, executable: bool = False) -> None:
        """Write a file, and the folders above it; relative to ``workdir``. Raises ``OSError``."""

    def read(self, path: str, limit: int = 1 << 20) -> bytes:
        """Read a regular file of at most ``limit`` bytes. Raises ``OSError``, also for a link."""

    def copy_in(self, folder: Path, target: str) -> None:
        """Copy a folder of the host into the folder ``target``. Raises ``OSError``."""

    def end_processes(self) -> None:
        """End every process in it; its files stay."""

    def empty(self, *folders: str) -> None:
        """Take everything out of ``/tests`` or ``/logs``."""

    def close(self) -> None:
        """End it with all its processes, and forget what was written."""


class SandboxProvider(Protocol):
    """Makes sandboxes, in several threads at once."""

    def open(self, task: Task) -> Sandbox:
        """A new sandbox with the environment of the task.

        Raises:
            SandboxError: It cannot be made.
            DataError: The environment of the task is not possible here.
        """

    def check(self, task: Task) -> None:
        """Raise ``DataError`` if the environment of the task is not possible here."""

    def capacity(self, task: Task) -> int:
        """How many sandboxes of the task this machine holds at once."""


def command_result(answer: Mapping[str, int | str], head: bytes, tail: bytes) -> CommandResult:
    """The result of a command whose output was kept in two halves.

    Args:
        answer: Has ``exit_code``, ``limit`` and ``cut``, the bytes between the halves that are gone.
        head: First bytes of the output.
        tail: Last bytes of the output.
    """
    cut, limit = int(answer["cut"]), str(answer["limit"])
    middle = f"\n[... {cut} bytes left out ...]\n" if cut else ""
    if cut:
        output = head.decode(errors="replace") + middle + tail.decode(errors="replace")
    else:
        output = (head + tail).decode(errors="replace")
    return CommandResult(output, int(answer["exit_code"]), limit == "time", cut, limit)
