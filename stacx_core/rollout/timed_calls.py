"""Calls of code that may hang, side by side in threads, each with a time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class OverTime(TimeoutError):
    """A call took longer than it may."""


def timed_calls(calls: Sequence[Callable[[], T]], workers: int, timeout: float) -> list[T | BaseException]:
    """Run calls in daemon threads, which a call that never returns cannot keep from ending with the process.

    Args:
        calls: What to call.
        workers: Most calls at a time; one that is over its time no longer counts.
        timeout: Seconds for each call, from its start.

    Returns:
        What each call returned or raised, in order; ``OverTime`` for one that is over its time.
    """
    results: list[T | BaseException] = [OverTime(f"no answer within {timeout:g} seconds") for _ in calls]
    answers: queue.SimpleQueue[tuple[int, T | BaseException]] = queue.SimpleQueue()
    waiting = deque(range(len(calls)))
    deadlines: dict[int, float] = {}
    while waiting or deadlines:
        while waiting and len(deadlines) < workers:
            index = waiting.popleft()
            deadlines[index] = time.monotonic() + timeout
            threading.Thread(target=_answer, args=(calls[index], index, answers), daemon=True).start()
        try:
            index, answer = answers.get(timeout=max(min(deadlines.values()) - time.monotonic(), 0))
        except queue.Empty:
            now = time.monotonic()
            deadlines = {index: deadline for index, deadline in deadlines.items() if deadline > now}
            continue
        if deadlines.pop(index, None) is not None:
            results[index] = answer
    return results


def _answer(call: Callable[[], T], index: int, answers: queue.SimpleQueue[tuple[int, T | BaseException]]) -> None:
    try:
        answers.put((index, call()))
    except BaseException as error:
        answers.put((index, error))
