"""Keep the servers that a run launched alive.

Each server has a thread that starts it, watches it, and starts another in its place when it ends or stops answering.
What to do with requests meanwhile, and how the new server gets the run's weights, is the business of a `Rotation`.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from types import TracebackType

from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.health import Quiet, Watch
from stacx_core.rollout.sglang.launch import LaunchPlan, Ports, ServerProcess, free_ports
from stacx_core.rollout.sglang.slot import Rotation, Slot


class Supervisor:
    """Servers of one run on this node.

    Args:
        plan: How to start them.
        count: How many.
        watch: How to watch them.
        ports: Chooses ports.
    """

    def __init__(
        self, plan: LaunchPlan, count: int, watch: Watch | None = None, ports: Callable[[], Ports] = free_ports
    ) -> None:
        self._closing = threading.Event()
        self._quiet = Quiet()
        self._slots = [Slot(index, plan, ports, watch or Watch(), self._quiet, self._closing) for index in range(count)]

    def start(self) -> list[str]:
        """Start all servers at a time, wait until they are ready, and return their URLs.

        Raises:
            EngineError: One did not start; the others are ended at once.
        """
        atexit.register(self.close)
        try:
            for slot in self._slots:
                slot.thread.start()
            wait([slot.started for slot in self._slots], return_when=FIRST_EXCEPTION)
            failed = [slot.started for slot in self._slots if slot.started.done() and slot.started.exception()]
            return [future.result() for future in failed or [slot.started for slot in self._slots]]
        except BaseException:
            self.close()
            raise

    def attach(self, rotation: Rotation) -> None:
        """Begin to watch; failures from the start on are told to this rotation."""
        for slot in self._slots:
            slot.rotation.set_result(rotation)

    def restart(self, index: int, cause: EngineError) -> bool:
        """Replace a server that others found useless; whether it comes back. Says so again while it is replaced."""
        return self._slots[index].restart(cause)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Do not judge the health meanwhile: a server whose generation is paused cannot show any."""
        with self._quiet:
            yield

    def processes(self) -> list[ServerProcess | None]:
        """The servers of the moment, by number; ``None`` for one that is being restarted or is gone."""
        return [slot.server for slot in self._slots]

    def close(self) -> None:
        """End every server and wait until nothing is left; closing twice does nothing."""
        atexit.unregister(self.close)
        self._closing.set()
        for slot in self._slots:
            slot.close()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
