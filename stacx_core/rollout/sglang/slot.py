"""One place among the servers of a run: the server in it, and those that replace it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future
from typing import Protocol

from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.health import LOOK_SECONDS, Health, Quiet, Watch
from stacx_core.rollout.sglang.launch import LaunchPlan, Ports, ServerProcess, launch

logger = logging.getLogger(__name__)


class Rotation(Protocol):
    """Whoever sends requests to the servers. Called from other threads, of one server one at a time."""

    @property
    def labels(self) -> Collection[str]:
        """Of the weights that servers were sent."""

    def lost(self, index: int, cause: EngineError) -> None:
        """Send a server nothing: it failed, and will be restarted."""

    def back(self, index: int, url: str) -> None:
        """The server at this URL, a new one or one that was lost, has old weights: send it the run's, then use it."""

    def gone(self, index: int, cause: EngineError) -> None:
        """Send a server nothing: it failed, and nobody will replace it."""


class Slot:
    """Starts a server in a thread of its own, watches it, and replaces it when it fails.

    Args:
        index: Its number.
        plan: How to start a server.
        ports: Chooses ports.
        watch: How to watch it.
        quiet: When not to judge its health.
        closing: Set when the run ends.
    """

    def __init__(
        self,
        index: int,
        plan: LaunchPlan,
        ports: Callable[[], Ports],
        watch: Watch,
        quiet: Quiet,
        closing: threading.Event,
    ) -> None:
        self.index = index
        self.server: ServerProcess | None = None
        self.started: Future[str] = Future()
        self.rotation: Future[Rotation] = Future()
        self.thread = threading.Thread(target=self._run, name=f"stacx-sglang-{index}", daemon=True)
        self._plan, self._ports, self._watch, self._quiet, self._closing = plan, ports, watch, quiet, closing
        self._left = watch.max_restarts
        self._hopeless = False
        self._asked: EngineError | None = None

    def restart(self, cause: EngineError) -> bool:
        """Replace the server soon; whether there will be one."""
        if self.server is None:
            return not self._hopeless
        self._asked = cause
        return self._left > 0

    def close(self) -> None:
        """End the server, and wait; `closing` must be set."""
        self.rotation.cancel()
        # A look at the health of a server that does not answer ends with it.
        if (server := self.server) is not None:
            server.end()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            self.started.set_result(self._launch())
        except Exception as error:
            self.started.set_exception(error)
            return
        try:
            rotation = self.rotation.result()
            self._supervise(rotation)
        except CancelledError:
            pass  # Closed before anybody used it.
        finally:
            self._end()

    def _launch(self) -> str:
        self.server = launch(self._plan, self.index, self._closing, self._ports)
        self._asked = None
        return self.server.url

    def _end(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.end()

    def _supervise(self, rotation: Rotation) -> None:
        cause = self._failure()
        while cause is not None and self._left > 0 and not self._closing.is_set():
            self._left -= 1
            logger.error("restarting (%d more time(s) at most): %s", self._left, cause)
            rotation.lost(self.index, cause)
            cause = self._replace(rotation) or self._failure()
        if cause is not None and not self._closing.is_set():
            self._hopeless = True
            self._end()
            logger.error("not restarting again: %s", cause)
            rotation.gone(self.index, cause)

    def _replace(self, rotation: Rotation) -> EngineError | None:
        """Put another server in place; why that failed, if it did."""
        self._end()
        try:
            rotation.back(self.index, self._launch())
        except EngineError as error:
            return error
        except Exception as error:
            return EngineError(f"SGLang server {self.index} was restarted, but not brought up to date: {error!r}")
        logger.warning("SGLang server %d is back", self.index)
        return None

    def _failure(self) -> EngineError | None:
        """Wait until the server fails, and say how; ``None`` at the end of the run."""
        server = self.server
        assert server is not None
        health = Health(server.url, self._watch, self._quiet)
        where = f"SGLang server {self.index} at {server.url}"
        while not self._closing.wait(LOOK_SECONDS):
            if (ended := server.ended()) is not None:
                return EngineError(f"{where} {ended}", f"{server.log} ends with:", server.output())
            if self._asked is not None:
                return self._asked
            if (failure := health.failure(where)) is not None:
                return EngineError(failure.message, f"{server.log} ends with:", server.output())
        return None
