"""Watch servers that somebody else started: one that is silent gets nothing to do until it shows signs of health again.

One that was started anew is noticed by the label of its weights, and given the run's before it gets anything to do.

They are never started or ended from here. A run that has none left ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.health import LOOK_SECONDS, Health, Quiet, Watch
from stacx_core.rollout.sglang.launch import is_healthy
from stacx_core.rollout.sglang.slot import Rotation

logger = logging.getLogger(__name__)


class HealthWatch:
    """Tells a rotation which servers are to be left out, and which are back; each is watched in a thread of its own.

    Args:
        urls: Of the servers, in the rotation's order.
        watch: How to watch them.
    """

    def __init__(self, urls: Sequence[str], watch: Watch) -> None:
        self._urls, self._watch = urls, watch
        self._quiet = Quiet()
        self._closing = threading.Event()
        self._taken_out = [threading.Event() for _ in urls]

    def attach(self, rotation: Rotation) -> None:
        """Begin to watch."""
        for index in range(len(self._urls)):
            arguments = (index, rotation)
            threading.Thread(target=self._run, args=arguments, name=f"stacx-health-{index}", daemon=True).start()

    def restart(self, index: int, cause: EngineError) -> bool:
        """Note that others took a server out of rotation. Nobody here can replace it, so it never promises to."""
        self._taken_out[index].set()
        return False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Do not judge the health meanwhile: a server whose generation is paused cannot show any."""
        with self._quiet:
            yield

    def close(self) -> None:
        """Watch no more."""
        self._closing.set()

    def _run(self, index: int, rotation: Rotation) -> None:
        while (cause := self._failure(index, rotation.labels)) is not None:
            rotation.gone(index, cause)
            self._bring_back(index, rotation)

    def _failure(self, index: int, labels: Collection[str]) -> EngineError | None:
        """Wait until the server is silent or has other weights, and say so; ``None`` at the end of the run.

        One that was taken out because it fails at its work, however healthy it looks, stays out. If it stops to look
        healthy, it was probably ended, and another one will answer in its place.
        """
        url = self._urls[index]
        health = Health(url, self._watch, self._quiet, labels)
        while not self._closing.wait(LOOK_SECONDS):
            if (failure := health.failure(url)) is not None:
                return failure
            if self._taken_out[index].is_set() and not health.last_look:
                return EngineError(f"{url} is not healthy")
        return None

    def _bring_back(self, index: int, rotation: Rotation) -> None:
        """Wait until the server is healthy, and let it be used."""
        url = self._urls[index]
        while not self._closing.wait(self._watch.interval):
            if not is_healthy(url, self._watch.timeout):
                continue
            try:
                rotation.back(index, url)
            except EngineError as error:
                if not self._closing.is_set():
                    logger.warning("%s is healthy again, but was not brought up to date: %s", url, error)
                continue
            self._taken_out[index].clear()
            logger.warning("%s is healthy again, and used", url)
            return
