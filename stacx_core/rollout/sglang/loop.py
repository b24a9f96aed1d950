"""One event loop in a thread of its own, for asynchronous calls from code that is not."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in a background thread, which ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stacx-sglang", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; an interrupt of the caller cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop's thread, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancel what runs and end the thread; closing twice does nothing."""
        if self._loop.is_closed():
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@cache
def shared_loop() -> LoopThread:
    """The process's loop, made when it is first asked for and closed at exit."""
    loop = LoopThread()
    atexit.register(loop.close)
    return loop
