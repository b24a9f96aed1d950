"""Start one SGLang server on this node, and end it without a trace.

Every server gets ports that nothing listened on a moment ago, and a name nobody can guess. A server is ready when the
one that answers at its port says that name, so a run never speaks with another run's server. A keeper process (see
:mod:`stacx_core.rollout.keeper`) ends the server together with the run.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stacx_core.errors import EngineError
from stacx_core.knobs import Args
from stacx_core.rollout import keeper

LOOPBACK = "127.0.0.1"
PORT_TRIES = 5
"""How many pairs of ports are tried."""

PORTS = range(10_000, 32_768)
"""Below the ports that Linux gives to outgoing connections, which may take one between our look and the bind."""

POLL_SECONDS = 0.2
PROBE_SECONDS = 10.0
"""For one answer while a server starts."""

TAIL = 3000
"""Characters of a log in a message."""

TAKEN = re.compile(r"address already in use|EADDRINUSE|port at \d+ is not available", re.IGNORECASE)

Ports = tuple[int, int]
"""Of HTTP, and of the server's own process group."""


@dataclass(frozen=True)
class LaunchPlan:
    """How to start servers that differ only by their number.

    Args:
        python: Interpreter that has sglang.
        module: Started with ``-m``.
        model: Hugging Face folder or hub id.
        arguments: Further arguments; ``{index}`` in one stands for the server's number.
        folder: For ``server_INDEX.log``.
        timeout: Seconds for a server to become ready.
    """

    python: str
    module: str
    model: str
    arguments: tuple[str, ...]
    folder: Path
    timeout: float = 600.0

    @classmethod
    def of(cls, args: Args, model: str, folder: Path) -> LaunchPlan:
        """The plan that the knobs ask for."""
        python = args.sglang_python or sys.executable
        extra = tuple(shlex.split(args.sglang_args))
        return cls(python, args.sglang_module, model, extra, folder, args.sglang_start_timeout)

    def log(self, index: int) -> Path:
        """Where a server's output goes."""
        return self.folder / f"server_{index}.log"

    def command(self, index: int, name: str, ports: Ports) -> list[str]:
        """What starts a server."""
        ours = {"--model-path": self.model, "--host": LOOPBACK, "--served-model-name": name}
        ours |= {"--port": str(ports[0]), "--nccl-port": str(ports[1])}
        further = [word.replace("{index}", str(index)) for word in self.arguments]
        return [self.python, "-m", self.module, *(word for pair in ours.items() for word in pair), *further]


@dataclass
class ServerProcess:
    """A server that was started.

    Args:
        url: Its address.
        name: Says that it is ours.
        log: Its output, after that of its predecessors.
        written: Bytes of the log that are theirs.
        process: Its keeper.
    """

    url: str
    name: str
    log: Path
    written: int
    process: subprocess.Popen[bytes] = field(repr=False)

    def ended(self) -> str | None:
        """How it ended, or ``None`` while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"was killed by signal {code - 128}" if code > 128 else f"exited with code {code}"

    def output(self) -> str:
        """The end of what it printed."""
        with self.log.open("rb") as stream:
            stream.seek(max(self.written, self.log.stat().st_size - TAIL))
            return stream.read().decode(errors="replace")

    def end(self) -> None:
        """Kill it and wait until nothing of it is left; ending twice does nothing."""
        self.process.terminate()
        self.process.wait()


class PortTaken(EngineError):
    """Somebody else listens on a port that was free a moment ago."""


def free_ports() -> Ports:
    """Two ports that nothing listens on.

    Raises:
        EngineError: A hundred random ones are all taken.
    """
    # Not the run's generator: two runs with one seed must not choose alike.
    found = [port for port in random.SystemRandom().sample(PORTS, 100) if is_free(port)]
    if len(found) < 2:
        raise EngineError(f"of 100 random ports from {PORTS.start} to {PORTS.stop - 1} fewer than two are free")
    return found[0], found[1]


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of any address of this node."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def launch(
    plan: LaunchPlan, index: int, closing: threading.Event, ports: Callable[[], Ports] = free_ports
) -> ServerProcess:
    """Start a server and wait until it is ready.

    Args:
        plan: How.
        index: Its number.
        closing: Gives up when set.
        ports: Chooses ports; asked again when those it chose are taken.

    Raises:
        EngineError: It ended, was not ready in time, or found its ports taken again and again.
    """
    for attempt in range(1, PORT_TRIES + 1):
        chosen = ports()
        server = spawn(plan, index, chosen)
        try:
            await_ready(plan, index, server, chosen, closing)
        except PortTaken:
            server.end()
            if attempt == PORT_TRIES:
                raise
        except BaseException:
            server.end()
            raise
        else:
            return server
    raise AssertionError("unreachable")


def spawn(plan: LaunchPlan, index: int, ports: Ports) -> ServerProcess:
    """Start a server under a keeper, in sessions of their own: a Ctrl-C in the terminal reaches the run only."""
    name = f"stacx-{uuid.uuid4().hex}"
    log = plan.log(index)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", keeper.__file__, str(os.getpid()), *plan.command(index, name, ports)]
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return ServerProcess(f"http://{LOOPBACK}:{ports[0]}", name, log, stream.tell(), process)


def await_ready(plan: LaunchPlan, index: int, server: ServerProcess, ports: Ports, closing: threading.Event) -> None:
    """Wait until the server is healthy, and make sure that it is ours.

    Raises:
        PortTaken: Another program has one of its ports.
        EngineError: It ended, or was not ready in time.
    """
    start = time.monotonic()
    what = f"SGLang server {index}"
    while not closing.wait(POLL_SECONDS):
        seconds = time.monotonic() - start
        details = (f"command: {shlex.join(plan.command(index, server.name, ports))}", f"{server.log} ends with:")
        ended = server.ended()
        # A server that cannot bind its port may go on running.
        if TAKEN.search(server.output()):
            raise PortTaken(f"{what}: a port of {ports[0]} and {ports[1]} is taken", *details, server.output())
        if ended is not None:
            raise EngineError(f"{what} {ended} after {seconds:.0f} s, before it was ready", *details, server.output())
        if seconds > plan.timeout:
            limit = f"was not ready after {plan.timeout:g} s (--sglang-start-timeout)"
            raise EngineError(f"{what} {limit}", *details, server.output())
        if is_healthy(server.url, min(PROBE_SECONDS, plan.timeout)):
            told = model_info(server.url).get("served_model_name")
            if told == server.name:
                return
            raise PortTaken(f"{what}: at port {ports[0]} another server answers, named {told!r}", *details)
    raise EngineError(f"{what} was given up before it was ready")


def is_healthy(url: str, timeout: float) -> bool:
    """Whether a server answers that it can generate, within so many seconds."""
    try:
        with _direct(url + "/health", timeout) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def model_info(url: str, timeout: float = PROBE_SECONDS) -> dict[str, Any]:
    """What a server says of itself; nothing when it is no SGLang server."""
    try:
        with _direct(url + "/model_info", timeout) as answer:
            told = json.load(answer)
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _direct(url: str, timeout: float) -> Any:
    """Open a page without the proxies that the environment may name."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=timeout)
