"""Process 1 of a bubblewrap sandbox: does what the host asks for, and outlives whatever its children do.

The host sends this file's text to a Python of its own inside the sandbox, so it imports nothing but the standard
library, of Python 3.9. Requests come on standard input and answers leave on standard output; a message is a JSON header
and a body, in chunks. When standard input ends, so does the sandbox, and the kernel kills every process in it.

Nothing inside can end, stop or read process 1: the kernel drops all signals that come to a process 1 from its own
namespace, a process that cannot be dumped shows the others neither its memory nor its streams, and the seccomp filter
refuses tracing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import json
import os
import resource
import select
import shlex
import signal
import stat
import struct
import sys
import tarfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

CHUNK = 1 << 16
PR_SET_DUMPABLE = 4
MAX_SOCKETS, MAX_TERMINALS = 1000, 50
Answer = tuple[dict[str, Any], Iterable[bytes]]
"""Header and body."""
LOOK = 0.05
"""Seconds between two looks at what the processes use."""


def write_chunk(stream: Any, data: bytes) -> None:
    """Write one piece of a message with its length."""
    stream.write(struct.pack(">I", len(data)) + data)


def read_chunk(stream: Any) -> bytes:
    """Read one piece of a message; raises ``EOFError`` where the stream ends."""
    (length,) = struct.unpack(">I", _exactly(stream, 4))
    return _exactly(stream, length)


def write_message(stream: Any, header: dict[str, Any], body: Iterable[bytes] = ()) -> None:
    """Write a header, the pieces of its body and an empty piece."""
    write_chunk(stream, json.dumps(header).encode())
    for piece in body:
        for start in range(0, len(piece), CHUNK):
            write_chunk(stream, piece[start : start + CHUNK])
    write_chunk(stream, b"")
    stream.flush()


def read_body(stream: Any) -> Iterator[bytes]:
    """The pieces of a body up to the empty one."""
    while piece := read_chunk(stream):
        yield piece


def _exactly(stream: Any, length: int) -> bytes:
    data = stream.read(length) if length else b""
    if len(data) < length:
        raise EOFError
    return bytes(data)


class HeadTail:
    """Keeps the first and the last bytes of what is added; counts what it lets go."""

    def __init__(self, limit: int) -> None:
        self._head, self._tail = bytearray(), deque[bytes]()
        self._head_room, self._tail_room = limit - limit // 2, limit // 2
        self._tail_size = self.total = 0

    def add(self, data: bytes) -> None:
        """Take in more."""
        self.total += len(data)
        room = self._head_room - len(self._head)
        self._head += data[:room]
        if rest := data[room:]:
            self._tail.append(rest)
            self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_room:
            self._tail_size -= len(self._tail.popleft())

    def halves(self) -> tuple[bytes, bytes, int]:
        """The first bytes, the last ones, and how many between them are gone."""
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_room) :]
        return bytes(self._head), tail, self.total - len(self._head) - len(tail)


class _Body(io.RawIOBase):
    """The body of a message as a file, for tarfile."""

    def __init__(self, stream: Any) -> None:
        self._pieces, self._left = read_body(stream), b""

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._pieces, b"")
        taken = self._left[: len(buffer)]
        buffer[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)

    def drain(self) -> None:
        """Read what nobody wanted, so that the next message can be read."""
        deque(self._pieces, 0)


class _Pieces(io.RawIOBase):
    """A file that tarfile writes into, sent off as the body of a message."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        if len(data):
            write_chunk(self._stream, bytes(data))
        return len(data)


def spawn(request: dict[str, Any]) -> tuple[int, int]:
    """Start a command in a session of its own; returns its process id and what reads its output."""
    reader, writer = os.pipe()
    if process := os.fork():
        os.close(writer)
        os.set_blocking(reader, False)
        return process, reader
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (writer, 1), (writer, 2)):
            os.dup2(source, target)
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            os.write(2, f"sandbox: {error}; starting in /\n".encode())
            os.chdir("/")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for name, value in request["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.execve("/bin/bash", ["bash", "-c", request["command"]], request["env"])
    except BaseException as error:  # whatever it is, the child must not go on as a second supervisor
        os.write(2, f"sandbox: cannot start the command: {error}\n".encode())
    finally:
        os._exit(126)


def end_all() -> None:
    """Kill every other process, and return when none is left."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def end_session(session: int) -> None:
    """Kill the processes of a command, also those that it left in the background."""
    for process in _processes():
        with contextlib.suppress(OSError):
            if os.getsid(process) == session:
                os.kill(process, signal.SIGKILL)


def memory_used(exactly: bool = False) -> int:
    """Bytes that all other processes hold; pages that several of them share count for each, unless ``exactly``."""
    return sum(_memory_of(process, exactly) for process in _processes()) << 10


def _memory_of(process: int, exactly: bool) -> int:
    # A process can hide the exact numbers of itself, but not the others. Page tables can be all that it holds.
    shares = _kilobytes(process, "smaps_rollup", b"Pss:", b"SwapPss:") if exactly else 0
    return (shares or _kilobytes(process, "status", b"VmRSS:", b"VmSwap:")) + _kilobytes(process, "status", b"VmPTE:")


def _kilobytes(process: int, name: str, *keys: bytes) -> int:
    # Only line feeds end lines: a process can have anything else in its name.
    lines = _read_proc(process, name).split(b"\n")
    return sum(int(line.split()[1]) for line in lines if line.startswith(keys))


def _processes() -> list[int]:
    return [int(name) for name in os.listdir(_proc()) if name.isdigit() and name != "1"]


@functools.cache
def _proc() -> int:
    """``/proc``, kept open: who closes / to everybody must not hide from the limits."""
    return os.open("/proc", os.O_RDONLY)


def _read_proc(process: int | str, name: str) -> bytes:
    """A file of a process, empty if it ended meanwhile."""
    try:
        with open(os.open(f"{process}/{name}", os.O_RDONLY, dir_fd=_proc()), "rb") as file:
            return file.read()
    except OSError:
        return b""


class Supervisor:
    """Serves one sandbox.

    Args:
        memory: Bytes that the processes may hold together.
        files: How many files may be made.
        writable: A folder of each file system that can be written.
    """

    def __init__(self, memory: int, files: int, writable: list[str]) -> None:
        self._memory, self._files, self._file_count = memory, files, 0
        self._writable = [os.open(folder, os.O_RDONLY) for folder in writable]
        self._input, self._output = sys.stdin.buffer, sys.stdout.buffer
        self._terminals = os.open("/dev/pts", os.O_RDONLY)
        self._left_open: list[int] = []  # outputs of the background, read and dropped, so that nobody blocks

    def serve(self) -> None:
        """Answer requests until the host is gone, which raises ``EOFError``."""
        while True:
            while not self._wait([0]):
                self._ended(0)
                self._end_if_exceeded()
            request = json.loads(read_chunk(self._input))
            body = _Body(self._input)
            answer = self._answer(request, body) if request["do"] != "pack" else None
            # Before the answer: what follows it must not be read together with this.
            body.drain()
            if answer is None:
                self._pack()
            else:
                write_message(self._output, *answer)

    def _answer(self, request: dict[str, Any], body: _Body) -> Answer:
        try:
            os.chmod("/", 0o755)  # whatever the agent made of it
            answer: Answer = getattr(self, "do_" + request["do"])(request, body)
            return answer
        except (OSError, tarfile.TarError) as error:
            number, text, path = (getattr(error, name, None) for name in ("errno", "strerror", "filename"))
            return {"errno": number or errno.EIO, "message": text or str(error), "path": path}, ()

    def _wait(self, wanted: list[int]) -> list[int]:
        """Which of the descriptors have something, a moment later at most; drops the output of the background."""
        # With no other process around there is nothing to look after.
        patience = LOOK if wanted != [0] or self._left_open or _processes() else None
        ready = select.select([*wanted, *self._left_open], [], [], patience)[0]
        for reader in [reader for reader in ready if reader not in wanted]:
            if not os.read(reader, CHUNK):
                self._left_open.remove(reader)
                os.close(reader)
        return [reader for reader in ready if reader in wanted]

    def _end_if_exceeded(self) -> str:
        filled = map(os.fstatvfs, self._writable)
        before, self._file_count = self._file_count, sum(found.f_files - found.f_ffree for found in filled)
        # Who takes files away may go on.
        terminals = len(os.listdir(self._terminals)) - 1
        if self._file_count > max(self._files, before) or _sockets() > MAX_SOCKETS or terminals > MAX_TERMINALS:
            end_all()
            return "files"
        if memory_used() > self._memory and memory_used(exactly=True) > self._memory:
            end_all()
            return "memory"
        return ""

    def do_run(self, request: dict[str, Any], body: _Body) -> Answer:
        """Run a command to its end, its time limit, or until the sandbox uses too much. Raises ``EOFError``."""
        body.drain()
        kept, until = HeadTail(request["output_limit"]), time.monotonic() + request["timeout"]
        process, reader = spawn(request)
        alive = os.pidfd_open(process)
        watched, limit, status = [0, alive, reader], "", None
        while status is None and not limit:
            ready = self._wait(watched)
            if 0 in ready:  # The next request follows the answer to this one.
                raise EOFError
            if reader in ready and not _take(reader, kept):
                watched.remove(reader)
            status = self._ended(process)
            limit = self._end_if_exceeded() if status is None else ""
            if status is None and not limit and time.monotonic() > until:
                limit = "time"
                end_session(process)
        os.close(alive)
        if limit == "time":
            os.waitpid(process, 0)
        self._last_output(reader, kept)
        head, tail, cut = kept.halves()
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        answer = {"exit_code": code if code >= 0 else 128 - code, "limit": limit, "head": len(head), "cut": cut}
        return answer, (head, tail)

    def _ended(self, wanted: int) -> int | None:
        """Reap the dead; the status of a process if it is among them."""
        status = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == wanted else status
        return status

    def _last_output(self, reader: int, kept: HeadTail) -> None:
        """Take what is in the pipe now; a process in the background may hold it and fill it for ever."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(32):
                if not _take(reader, kept):
                    os.close(reader)
                    return
        self._left_open.append(reader)

    def do_write(self, request: dict[str, Any], body: _Body) -> Answer:
        """Write a file and the folders above it."""
        os.makedirs(os.path.dirname(request["path"]) or "/", exist_ok=True)
        file = os.open(request["path"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, request["mode"])
        with open(file, "wb") as stream:
            while piece := body.read(CHUNK):
                stream.write(piece)
        os.chmod(request["path"], request["mode"])
        return {}, ()

    def do_read(self, request: dict[str, Any], _: _Body) -> Answer:
        """Read a regular file; links, pipes and files that are too long are refused."""
        file = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(file, "rb") as stream:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = stream.read(request["limit"] + 1)
        if len(data) > request["limit"]:
            raise OSError(errno.EFBIG, f"longer than {request['limit']} bytes")
        return {}, (data,)

    def do_unpack(self, request: dict[str, Any], body: _Body) -> Answer:
        """Unpack a tar archive into a folder."""
        os.makedirs(request["path"], exist_ok=True)
        with tarfile.open(fileobj=body, mode="r|") as archive:
            if hasattr(tarfile, "fully_trusted_filter"):
                archive.extraction_filter = tarfile.fully_trusted_filter
            archive.extractall(request["path"])
        return {}, ()

    def _pack(self) -> None:
        """Send everything that was written below / as a tar archive."""
        device = os.lstat("/").st_dev
        write_chunk(self._output, b"{}")
        with tarfile.open(fileobj=_Pieces(self._output), mode="w|", bufsize=CHUNK) as archive:
            archive.add("/", ".", filter=lambda found: found if os.lstat("/" + found.name).st_dev == device else None)
        write_chunk(self._output, b"")
        self._output.flush()

    def do_end(self, _: dict[str, Any], __: _Body) -> Answer:
        """End every process."""
        end_all()
        return {}, ()

    def do_empty(self, request: dict[str, Any], _: _Body) -> Answer:
        """Empty folders, however deep and closed they are; the folders themselves are mounts that nobody can move."""
        places = shlex.join(request["paths"])
        command = f"chmod -R u+rwX {places}; find {places} -mindepth 1 -delete"
        process, reader = spawn({**request, "cwd": "/", "command": command, "rlimits": {}})
        os.close(reader)
        os.waitpid(process, 0)
        self._files += self._file_count  # what the agent left must not keep the tests from being run
        return {}, ()


def _sockets() -> int:
    """How many sockets there are in the sandbox; their buffers are memory that belongs to no process."""
    return int((_read_proc("self", "net/sockstat").split() or [b"0"] * 3)[2])


def _take(reader: int, kept: HeadTail) -> bool:
    """Read a piece; False at the end."""
    data = os.read(reader, CHUNK)
    kept.add(data)
    return bool(data)


def hide() -> None:
    """Close this process's memory and streams to the others, which run as the same user."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    hide()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would let it through
    with contextlib.suppress(BrokenPipeError, EOFError):
        Supervisor(**json.loads(sys.argv[1])).serve()
