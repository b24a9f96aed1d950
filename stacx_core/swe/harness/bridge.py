"""From a harness on this machine into the sandbox of its task.

The words of a harness reach the sandbox through a program that takes those of ``docker exec``, which most harnesses
can be told to use, and a Unix socket in the harness's own folder. So it works with sandboxes of every kind, needs
nothing of the harness inside them, and what the model wrote runs there alone.
"""

from __future__ import annotations

import json
import shlex
import socketserver
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from stacx_core.errors import SandboxError
from stacx_core.swe.harness import sandbox_command
from stacx_core.swe.sandboxes import Sandbox

LONGEST_REQUEST = 1 << 20
CLIENT_SECONDS = 10.0
"""How long a client may take to say what it wants."""
_LOOK = 0.05


class _Server(socketserver.UnixStreamServer):
    """Answers one client after another, as a sandbox is used by one thread at a time."""

    request_queue_size = 64

    def __init__(self, path: str, bridge: Bridge) -> None:
        self.bridge = bridge
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's trouble."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = CLIENT_SECONDS
    server: _Server

    def handle(self) -> None:
        request = json.loads(self.rfile.readline(LONGEST_REQUEST))
        self.wfile.write(json.dumps(self.server.bridge.answer(request)).encode() + b"\n")


class Bridge(AbstractContextManager["Bridge"]):
    """Lets programs of this machine run commands in a sandbox, until the context is left.

    Args:
        sandbox: Of the episode.
        folder: Of the harness; the program and the socket lie in it.
        seconds: Longest command.
        until: Time of ``time.monotonic`` after which no command goes on.

    Attributes:
        program: Path of the program.
        failure: Why the sandbox is gone, if it is.
    """

    def __init__(self, sandbox: Sandbox, folder: Path, seconds: float, until: float) -> None:
        self._sandbox, self._seconds, self._until = sandbox, seconds, until
        self.failure: SandboxError | None = None
        place = str(folder / "sandbox.sock")
        self._server = _Server(place, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)
        self.program = folder / "sandbox"
        words = [sys.executable, "-I", sandbox_command.__file__, place]
        self.program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        self.program.chmod(0o700)
        self._thread.start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the command of a request of :mod:`stacx_core.swe.harness.sandbox_command`."""
        folder = shlex.quote(request["cwd"] or self._sandbox.workdir)
        command = f"cd {folder} && exec {shlex.join(request['command'])}"
        seconds = max(0.0, min(self._seconds, self._until - time.monotonic()))
        try:
            result = self._sandbox.run(command, seconds, request["env"])
        except SandboxError as error:
            self.failure = error
            return {"error": str(error)}
        except OSError as error:
            return {"error": str(error)}
        ended = f"\n[ended for its use of {result.limit}]\n" if result.limit else ""
        return {"output": result.output + ended, "exit_code": result.exit_code}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
