"""Episodes side by side, in threads that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def side_by_side(calls: Sequence[Callable[[], T]], at_once: int) -> list[Future[T]]:
    """Begin calls in order, ``at_once`` of them at a time; those whose future is cancelled before are left out.

    The threads are daemons, unlike those of an executor: a call under way does not keep the process from ending.
    """
    futures = [Future[T]() for _ in calls]
    waiting: queue.SimpleQueue[tuple[Callable[[], T], Future[T]]] = queue.SimpleQueue()
    for pair in zip(calls, futures, strict=True):
        waiting.put(pair)
    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=_work, args=(waiting,), daemon=True).start()
    return futures


def _work(waiting: queue.SimpleQueue[tuple[Callable[[], T], Future[T]]]) -> None:
    with suppress(queue.Empty):
        while True:
            call, future = waiting.get_nowait()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # whatever it is, somebody waits for the answer
                    future.set_exception(error)
