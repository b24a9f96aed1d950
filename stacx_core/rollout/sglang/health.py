"""Whether a server still shows signs of health."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from stacx_core.errors import EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.launch import is_healthy, model_info

LOOK_SECONDS = 0.2
"""How soon those who watch a server notice that something has happened."""


@dataclass(frozen=True)
class Watch:
    """How servers are watched.

    Args:
        interval: Seconds between two looks at the health.
        timeout: Seconds without a sign of health after which a server counts as failed: `interval + timeout` seconds
            after it stopped at the latest.
        max_restarts: How often each server is restarted.
    """

    interval: float = 5.0
    timeout: float = 60.0
    max_restarts: int = 3

    @classmethod
    def of(cls, args: Args) -> Watch:
        """As the knobs say."""
        return cls(args.sglang_health_interval, args.sglang_health_timeout, args.sglang_max_restarts)


class Quiet:
    """Times in which health is not judged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._ended = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._ended = time.monotonic()

    def last(self) -> float:
        """When it was last quiet: now, or then (`time.monotonic`)."""
        with self._lock:
            return time.monotonic() if self._count else self._ended


class Health:
    """Looks at one server now and then.

    Args:
        url: Of the server, which is taken for healthy at first.
        watch: How often to look, and how long to wait for a sign.
        quiet: When not to judge.
        labels: Of weights that it may have, once there are any; all labels are added while it is quiet.
    """

    def __init__(self, url: str, watch: Watch, quiet: Quiet, labels: Collection[str] = ()) -> None:
        self._url, self._watch, self._quiet, self._labels = url, watch, quiet, labels
        self._shown = self._due = time.monotonic()
        self.last_look = True
        """Whether the last look saw a sign."""

    def failure(self, what: str) -> EngineError | None:
        """Look, if it is time to, and say what is wrong with `what`, a name for the server, if anything is."""
        if (now := time.monotonic()) < self._due:
            return None
        self.last_look = is_healthy(self._url, self._watch.timeout)
        if self.last_look:
            self._shown = now
            label = model_info(self._url).get("weight_version") if self._labels else None
            if label is not None and label not in self._labels and self._quiet.last() < now:
                return EngineError(f"{what} has weights labelled {label!r}, which this run did not send")
        elif time.monotonic() - max(self._shown, self._quiet.last()) >= self._watch.timeout:
            limit = f"{self._watch.timeout:g} s (--sglang-health-timeout)"
            return EngineError(f"{what} showed no sign of health for {limit}")
        self._due = time.monotonic() + self._watch.interval
        return None
