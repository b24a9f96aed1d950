"""Looks after the processes while the driver does something else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import ray

from stacx_core.trainer.interrupts import BrokenOffError
from stacx_core.trainer.ray.failures import Failure

TICK = 1.0
"""Seconds between two looks at what came back."""

SIGNAL = signal.SIGUSR1
"""Takes the main thread out of what it does when a process has failed."""

LOGS = "workers"
"""Of the run's folder: what each process prints."""


@dataclass
class Member:
    """An actor.

    Attributes:
        pool, rank: Which one it is.
        actor: Its handle.
        home: Its process and node, once they are known.
    """

    pool: str
    rank: int
    actor: Any
    home: str = ""

    @property
    def where(self) -> str:
        """Role, rank, process and node."""
        return f"{self.pool} rank {self.rank}" + (f" ({self.home})" if self.home else "")

    @property
    def log(self) -> str:
        """The file in the run's folder that takes what it prints."""
        return f"{LOGS}/{self.pool}-{self.rank}.log"


class Watch:
    """Pings every actor, in a thread; a context manager is not needed, but :meth:`stop` is.

    Args:
        members: The actors.
        seconds: How long one may take to answer.
    """

    def __init__(self, members: Sequence[Member], seconds: float) -> None:
        self.failure: Failure | None = None
        self._members, self._seconds = members, seconds
        self._over, self._found = threading.Event(), threading.Event()
        self._attending = 0
        self._old: Any = None
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(SIGNAL, self._interrupt)
        self._thread = threading.Thread(target=self._run, name="stacx-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def attended(self) -> Iterator[None]:
        """The main thread looks at :attr:`failure` itself within the block."""
        main = threading.current_thread() is threading.main_thread()
        self._attending += main
        try:
            yield
        finally:
            self._attending -= main

    def check(self) -> None:
        """Raise what the run ends with, if a process has failed."""
        if self.failure is not None:
            raise self.failure.error

    def pause(self) -> None:
        """Wait for a failure, a moment at most."""
        self._found.wait(TICK / 10)

    def stop(self) -> None:
        """Look no longer."""
        self._over.set()
        self._thread.join()
        if self._old is not None:
            signal.signal(SIGNAL, self._old)
            self._old = None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.failure is not None and not self._attending and not self._over.is_set():
            raise BrokenOffError(self.failure.error)

    def _run(self) -> None:
        """Keep one ping under way to each actor.

        Time is counted in ticks of this loop, so that a driver that was suspended itself accuses nobody; the first
        answer of an actor, which imports before it gives one, may take as long as it likes.
        """
        sent = {member.actor.ping.remote(): member for member in self._members}
        waited = dict.fromkeys(map(id, self._members), 0.0)
        answered: set[int] = set()
        while not self._over.is_set() and self.failure is None:
            began = time.monotonic()
            done, _ = ray.wait(list(sent), num_returns=len(sent), timeout=TICK)
            passed = min(time.monotonic() - began, 2 * TICK)
            for ref in done:
                member = sent.pop(ref)
                try:
                    ray.get(ref)
                except Exception as problem:
                    return self._failed(Failure.of(member.where, member.log, problem))
                answered.add(id(member))
                waited[id(member)] = 0.0
                sent[member.actor.ping.remote()] = member
            late = [member for member in sent.values() if id(member) in answered]
            for member in late:
                waited[id(member)] += passed
                if waited[id(member)] > self._seconds:
                    return self._failed(Failure.silent(member.where, self._seconds))
            if len(done) == len(self._members):
                self._over.wait(TICK)
        return None

    def _failed(self, failure: Failure) -> None:
        if self._over.is_set():
            return
        self.failure = failure
        self._found.set()
        if self._old is not None and not self._attending:
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
