"""A bounded number of sandboxes at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress

from stacx_core.errors import ConfigError, SandboxError
from stacx_core.swe.sandboxes.machine import processors
from stacx_core.swe.sandboxes.sandbox import Sandbox, SandboxProvider
from stacx_core.swe.tasks import Task


class SandboxPool:
    """Opens at most ``size`` sandboxes at once; further episodes wait until one is closed.

    An episode holds one sandbox from its first command to its verification, and waits for no second one, so that
    any number of threads gets through.

    Args:
        provider: Makes the sandboxes.
        size: How many; None for as many as this machine holds, at most four a processor.
        tasks: What they will be opened for.

    Raises:
        ConfigError: The machine never holds that many sandboxes of these tasks.
    """

    def __init__(self, provider: SandboxProvider, size: int | None, tasks: Iterable[Task]) -> None:
        room = {task.name: provider.capacity(task) for task in tasks}
        largest = min(room, key=lambda name: room[name], default="")
        if size is None:
            size = min([*room.values(), 4 * len(processors())])
        if size < 1 or (largest and size > room[largest]):
            most = f"at most {room[largest]} of task {largest!r}, by its limits" if largest else "at least one"
            raise ConfigError(f"a pool of {size} sandboxes is not possible: this machine holds {most}")
        self.size = size
        self._provider, self._places = provider, threading.Semaphore(size)
        self._lock, self._held, self._over = threading.Lock(), set[Future[Sandbox]](), False

    @contextmanager
    def open(self, task: Task) -> Iterator[Sandbox]:
        """A sandbox of a task, closed at the end; waits for a free place.

        Raises:
            SandboxError: It cannot be made, or the pool was closed.
            DataError: The environment of the task is not possible here.
        """
        with self._places:
            opening = self._begun(task)
            try:
                yield _opened(opening, task)
            finally:
                with self._lock:
                    self._held.discard(opening)
                _close(opening)

    def close(self) -> None:
        """End the sandboxes that are open or being opened, whatever is done in them, and open no more.

        Who uses one, or asks for one, gets ``SandboxError``. An interrupt of this call lets the sandboxes go on ending.
        """
        with self._lock:
            self._over, held = True, list(self._held)
        ending = [threading.Thread(target=_close, args=(opening,), daemon=True) for opening in held]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def _begun(self, task: Task) -> Future[Sandbox]:
        """Open in a thread that nobody has to wait for: it may be building an environment."""
        opening: Future[Sandbox] = Future()
        with self._lock:
            if self._over:
                raise SandboxError(f"no sandbox of {task.name} is opened any more")
            self._held.add(opening)
        threading.Thread(target=self._open, args=(task, opening), daemon=True).start()
        return opening

    def _open(self, task: Task, opening: Future[Sandbox]) -> None:
        try:
            sandbox = self._provider.open(task)
        except BaseException as error:  # whatever it is, somebody waits for the answer
            with suppress(InvalidStateError):
                opening.set_exception(error)
            return
        try:
            opening.set_result(sandbox)
        except InvalidStateError:
            sandbox.close()


def _opened(opening: Future[Sandbox], task: Task) -> Sandbox:
    try:
        return opening.result()
    except CancelledError:
        raise SandboxError(f"the sandbox of {task.name} was ended before it was there") from None


def _close(opening: Future[Sandbox]) -> None:
    """Close the sandbox, or have it closed as soon as it is there."""
    if not opening.cancel() and opening.exception() is None:
        opening.result().close()
