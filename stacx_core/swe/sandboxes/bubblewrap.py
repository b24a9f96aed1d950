"""The embedded sandbox: bubblewrap, Linux namespaces and limits, without a container engine or root.

An episode is one bubblewrap process whose process 1 is a supervisor (``supervisor.py``) that runs one command after
another. Its files are on memory file systems of fixed size, so they live as long as their mount namespace: one
bubblewrap for each command would need a folder of the host, which no unprivileged process can limit in size.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from stacx_core.errors import SandboxError
from stacx_core.swe.sandboxes.dockerfile import SYSTEM_ENV
from stacx_core.swe.sandboxes.layers import folder_archive
from stacx_core.swe.sandboxes.sandbox import OUTPUT_LIMIT, CommandResult, command_result
from stacx_core.swe.sandboxes.supervisor import read_body, read_chunk, write_message

PATIENCE = 60.0
"""Seconds beyond a request's own time after which a sandbox that does not answer is given up."""


class BubblewrapSandbox:
    """One running sandbox.

    Args:
        process: Bubblewrap, its standard streams pipes.
        name: For messages.
        workdir: The folder that commands start in.
        env: Variables of every command, besides the usual ones.
        rlimits: Limit of ``setrlimit`` by name, for every process of a command.
        released: Called once, when it is closed.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        name: str,
        workdir: str,
        env: Mapping[str, str],
        rlimits: Mapping[str, int],
        released: Callable[[], None],
    ) -> None:
        self.workdir = workdir
        self._process, self._name, self._released = process, name, released
        self._env, self._rlimits = {**SYSTEM_ENV, **env}, dict(rlimits)

    def run(self, command: str, timeout: float, env: Mapping[str, str] | None = None) -> CommandResult:
        """See ``Sandbox``."""
        return self.run_in(self.workdir, command, timeout, env)

    def run_in(self, cwd: str, command: str, timeout: float, env: Mapping[str, str] | None = None) -> CommandResult:
        """As ``run``, in another folder."""
        answer, body = self._ask(
            {
                "do": "run",
                "command": command,
                "cwd": cwd,
                "timeout": timeout,
                "env": {**self._env, **(env or {})},
                "rlimits": self._rlimits,
                "output_limit": OUTPUT_LIMIT,
            },
            patience=timeout + PATIENCE,
        )
        return command_result(answer, body[: answer["head"]], body[answer["head"] :])

    def write(self, path: str, data: bytes, executable: bool = False) -> None:
        """See ``Sandbox``."""
        mode = 0o755 if executable else 0o644
        self._ask({"do": "write", "path": self._absolute(path), "mode": mode}, [data])

    def read(self, path: str, limit: int = 1 << 20) -> bytes:
        """See ``Sandbox``."""
        return self._ask({"do": "read", "path": self._absolute(path), "limit": limit})[1]

    def copy_in(self, folder: Path, target: str) -> None:
        """See ``Sandbox``."""
        self.unpack(folder_archive(folder), target)

    def unpack(self, archive: bytes, target: str = "/") -> None:
        """Unpack a tar archive into a folder. Raises ``OSError``."""
        self._ask({"do": "unpack", "path": self._absolute(target)}, [archive])

    def pack(self, file: IO[bytes]) -> None:
        """Write everything that the sandbox's file system has, as a tar archive."""
        self._ask({"do": "pack"}, sink=file.write, patience=10 * PATIENCE)

    def end_processes(self) -> None:
        """See ``Sandbox``."""
        self._ask({"do": "end"})

    def empty(self, *folders: str) -> None:
        """See ``Sandbox``."""
        self._ask({"do": "empty", "paths": folders, "env": SYSTEM_ENV})

    def close(self) -> None:
        """See ``Sandbox``."""
        with contextlib.suppress(OSError):
            self._streams()[0].close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        released, self._released = self._released, _nothing
        released()

    def _absolute(self, path: str) -> str:
        return os.path.join(self.workdir, path)

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ask(
        self,
        request: dict[str, Any],
        body: Iterable[bytes] = (),
        sink: Callable[[bytes], object] | None = None,
        patience: float = PATIENCE,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request; returns header and body of the answer, the body empty if a sink takes it."""
        if self._streams()[0].closed:
            raise SandboxError(f"the sandbox of {self._name} is closed")
        backstop = threading.Timer(patience, self._process.kill)
        backstop.daemon = True
        backstop.start()
        requests, answers = self._streams()
        pieces: list[bytes] = []
        try:
            write_message(requests, request, body)
            answer = json.loads(read_chunk(answers))
            for piece in read_body(answers):
                (sink or pieces.append)(piece)
        except (EOFError, OSError, ValueError) as error:
            raise self._lost(request["do"]) from error
        finally:
            backstop.cancel()
        if "errno" in answer:
            place = answer["path"] if isinstance(answer["path"], str) else request.get("path")
            raise OSError(answer["errno"], answer["message"], place)
        return answer, b"".join(pieces)

    def _lost(self, doing: str) -> SandboxError:
        self._process.kill()
        code = self._process.wait()
        said = ""
        with contextlib.suppress(ValueError):  # closed by another thread
            said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
        hint = (said.splitlines()[-1],) if said else ()
        return SandboxError(f"the sandbox of {self._name} ended (exit code {code}) during {doing!r}", *hint)


def _nothing() -> None:
    pass
