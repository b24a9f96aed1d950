"""A bounded number of sandboxes at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stacx_core.errors import ConfigError
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

    @contextmanager
    def open(self, task: Task) -> Iterator[Sandbox]:
        """A sandbox of a task, closed at the end; waits for a free place. Raises as ``SandboxProvider.open``."""
        with self._places:
            sandbox = self._provider.open(task)
            try:
                yield sandbox
            finally:
                sandbox.close()
