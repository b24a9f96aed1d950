"""The rollouts of a run: one when the trainer asks for it, or some ahead in a thread while it trains."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from stacx_core.data.sample import Sample
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.protocol import RollIn, Rollout

STOP_SECONDS = 30.0
"""How long a rollout that is no longer wanted may take to end."""
ABORT_SECONDS = 0.2
"""Until what it does next is aborted too: the next turn of an episode, say."""

logger = logging.getLogger(__name__)


@runtime_checkable
class AbortableEngine(RolloutEngine, Protocol):
    """An engine whose generation can be stopped."""

    def abort(self) -> None:
        """Stop every generation under way, from another thread; each then raises in the thread that waits for it."""


@dataclass(frozen=True)
class Rolled:
    """A rollout, and how it came about.

    Args:
        rollout: Its samples and metrics.
        position: The roll-in's state right behind it.
        seconds: How long it took to make.
    """

    rollout: Rollout
    position: dict[str, Any]
    seconds: float


class RolloutsInTurn:
    """Makes each rollout when it is asked for, in the trainer's own thread.

    Args:
        roll_in: Makes them.
        engine: Generates.
    """

    def __init__(self, roll_in: RollIn, engine: RolloutEngine) -> None:
        self.roll_in = roll_in
        self.engine = engine

    def take(self, number: int) -> Rolled:
        """Rollout ``number``, while the trainer does not change the weights. They are taken in order."""
        with self.engine.weights_at_rest():
            return self._roll(number)

    def updated(self, completed: int) -> None:
        """Note that the engine has the weights of so many completed rollouts."""

    @contextmanager
    def idle(self) -> Iterator[None]:
        """No rollout is made meanwhile, and the trainer does not change the weights."""
        with self.engine.weights_at_rest():
            yield

    def close(self) -> None:
        """Make no more."""

    def _roll(self, number: int) -> Rolled:
        began = time.perf_counter()
        rollout = self.roll_in.roll(number, self.engine)
        return Rolled(rollout, self.roll_in.state(), time.perf_counter() - began)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RolloutsAhead(RolloutsInTurn):
    """Makes rollouts in a thread of its own, in order, from when it is entered.

    Rollout ``n`` is begun when the engine has the weights of ``n - staleness`` completed rollouts, so that none of its
    tokens is by older ones; tokens that are sampled after later updates are by newer ones.

    Args:
        roll_in: Makes them, and is left to the thread.
        engine: Generates; its weights change meanwhile.
        numbers: Of the rollouts to make.
        staleness: Updates by which the weights that sample may lag behind those that are trained.
    """

    def __init__(self, roll_in: RollIn, engine: AbortableEngine, numbers: range, staleness: int) -> None:
        super().__init__(roll_in, engine)
        self._abort = engine.abort
        self._numbers = numbers
        self._staleness = staleness
        self._completed = numbers.start
        self._made: deque[Rolled | BaseException] = deque()
        self._rolling = self._paused = self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stacx-rollouts", daemon=True)

    def take(self, number: int) -> Rolled:
        """Wait for the next rollout, at rest.

        Raises:
            BaseException: What the rollout raised in its thread.
        """
        with self.engine.weights_at_rest(), self._changed:
            self._changed.wait_for(lambda: self._made)
            made = self._made[0]
            if isinstance(made, BaseException):
                raise made
            del self._made[0]
            return made

    def updated(self, completed: int) -> None:
        """See the base class."""
        with self._changed:
            self._completed = completed
            self._changed.notify_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """See the base class; a rollout under way is finished first."""
        with self.engine.weights_at_rest():
            try:
                with self._changed:
                    self._paused = True
                    self._changed.wait_for(lambda: not self._rolling)
                yield
            finally:
                with self._changed:
                    self._paused = False
                    self._changed.notify_all()

    def close(self) -> None:
        """Abort the rollout under way and wait for the thread, for ``STOP_SECONDS`` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.roll_in.stop()
        deadline = time.monotonic() + STOP_SECONDS
        with self.engine.weights_at_rest():
            while self._thread.is_alive() and time.monotonic() < deadline:
                self._abort()
                self._thread.join(ABORT_SECONDS)
        if self._thread.is_alive():
            logger.warning("a rollout does not end within %g s of being stopped; it is left alone", STOP_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        for number in self._numbers:
            if not self._begin(number):
                return
            made: Rolled | BaseException
            try:
                made = self._roll(number)
            except BaseException as error:  # SystemExit of a reward, say: the trainer raises it.
                made = error
            self._end(made)
            if isinstance(made, BaseException):
                return

    def _begin(self, number: int) -> bool:
        """Wait until a rollout may be made; whether it is still wanted."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or (not self._paused and number <= self._completed + self._staleness)
            )
            self._rolling = not self._closing
            return self._rolling

    def _end(self, made: Rolled | BaseException) -> None:
        with self._changed:
            self._rolling = False
            self._made.append(made)
            self._changed.notify_all()


def staleness(samples: Sequence[Sample], completed: int) -> dict[str, float]:
    """How many updates the oldest weights behind these samples lag behind those of ``completed`` rollouts.

    Samples without versions, of demonstrations say, do not count.
    """
    versions = [int(version) for sample in samples for version in sample.weight_versions]
    return {"staleness": float(completed - min(versions))} if versions else {}
