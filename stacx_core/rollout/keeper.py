"""Run a command and leave nothing of it behind: `python -I keeper.py PARENT [--remove FOLDER] COMMAND...`.

A keeper stands between a run and a program that the run started: a server, or an agent harness. It waits for whichever
ends first: the program, the run, or its own SIGTERM. Then it kills every process that descends from the program, and
removes its temporary files, the shared memory that these processes had mapped, and the named folder. So a run that is
itself killed with SIGKILL leaves nothing. It imports nothing but the standard library, and needs Linux.

The program is killed rather than asked: SGLang takes up to 5 s to react to SIGTERM, and leaves its shared memory.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_SECONDS = 1.0
"""How often the shared memory is noted: what a program mapped can no longer be told once it is dead."""

END_SECONDS = 30.0
"""How long processes may take to die: one that waits for a broken device does not."""

SHARED_MEMORY = "/dev/shm/"


REMOVE = "--remove"
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int, command: list[str]) -> int:
    """Run the command until it or the parent ends; return its exit status, 0 when it was this program that ended it.

    Args:
        parent: Process id of the run.
        command: Words of the program, perhaps behind `--remove` and a folder that is removed in the end.
    """
    folders = [command[1]] if command[:1] == [REMOVE] else []
    command = command[2 * len(folders) :]
    for number in STOPS:
        signal.signal(number, _stop)
    control(PR_SET_CHILD_SUBREAPER, 1)
    # Not in the run's folder: the path of a Unix socket must be short.
    scratch = tempfile.mkdtemp(prefix="stacx-kept-")
    mapped: set[str] = set()
    program = None
    try:
        watched = os.pidfd_open(parent)
        if os.getppid() == parent:
            program = subprocess.Popen(command, env={**os.environ, "TMPDIR": scratch}, preexec_fn=_die_with_keeper)
            wait(os.pidfd_open(program.pid), watched, mapped)
    except (SystemExit, ProcessLookupError):
        pass  # Told to stop, or the parent is gone already.
    finally:
        _ignore_stops()
        status = program.poll() if program else None
        end_descendants(mapped)
        for path in mapped:
            Path(path).unlink(missing_ok=True)
        for folder in (scratch, *folders):
            shutil.rmtree(folder, ignore_errors=True)
    return status or 0


def wait(program: int, parent: int, mapped: set[str]) -> None:
    """Return when one of the two processes (as pid descriptors) has ended; note shared memory meanwhile."""
    ended: list[int] = []
    while not ended:
        ended, _, _ = select.select([program, parent], [], [], LOOK_SECONDS)
        for process in descendants(os.getpid()):
            mapped |= shared_memory(process)


def end_descendants(mapped: set[str]) -> None:
    """Kill all processes below this one, those started meanwhile too, and reap them."""
    deadline = time.monotonic() + END_SECONDS
    while processes := list(descendants(os.getpid())):
        if time.monotonic() > deadline:
            print(f"keeper: processes {processes} do not die", file=sys.stderr)
            return
        for process in processes:
            mapped |= shared_memory(process)
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap()
        time.sleep(0.01)


def reap() -> None:
    """Collect every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def descendants(of: int) -> Iterator[int]:
    """Processes below one; a keeper inherits orphans of those below it, as their subreaper."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(entry)):
            children.setdefault(parent, []).append(int(entry.name))
    waiting = children.get(of, [])
    while waiting:
        process = waiting.pop()
        waiting.extend(children.get(process, []))
        yield process


def parent_of(entry: Path) -> int | None:
    """The parent of a process of /proc, `None` when it is gone."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def shared_memory(process: int) -> set[str]:
    """Files of /dev/shm that a process has mapped.

    They are told by their inode: a semaphore is mapped under a name of the moment, and then renamed.
    """
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    mapped = {line.split()[4] for line in lines if SHARED_MEMORY in line}
    return {file.path for file in os.scandir(SHARED_MEMORY) if str(file.inode()) in mapped} if mapped else set()


def control(option: int, value: int) -> None:
    """Set an attribute of this process, where the C library knows how."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_keeper() -> None:
    control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(number: int, frame: FrameType | None) -> None:
    _ignore_stops()
    sys.exit(0)


def _ignore_stops() -> None:
    """A second signal must not break off the tidying."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
