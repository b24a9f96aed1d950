"""What the processes of `many_processes.py` do."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.testing.parallel import UpdateJob

WARM_UP = 2
"""Updates that are run but not measured."""


@dataclass(frozen=True)
class StepsJob(UpdateJob):
    """Updates of one recipe, timed."""

    steps: int = 10

    def run(self, rank: int = 0, ranks: int = 1) -> Any:
        """Seconds of each update but the first ones."""
        learner = self.learner(ranks)
        seconds = []
        for step in range(WARM_UP + self.steps):
            began = time.perf_counter()
            learner.update(self.batch, step)
            seconds.append(time.perf_counter() - began)
        return seconds[WARM_UP:]


@dataclass(frozen=True)
class Moved:
    """What a process saw while weights were gathered.

    Args:
        seconds: That it took.
        held: Bytes of its share of the model.
        peak: The most bytes that it needed beside what it had before.
    """

    seconds: float
    held: int
    peak: int


@dataclass(frozen=True)
class WeightsJob(UpdateJob):
    """Gathering the policy's weights on the first process, each let go of before the next."""

    def run(self, rank: int = 0, ranks: int = 1) -> Any:
        """What this process saw."""
        worker = self.learner(ranks).policy
        held = sum(parameter.nbytes for parameter in worker.model.parameters())
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # The peak is counted from here.
        before, began = _resident("VmRSS"), time.perf_counter()
        for _ in worker.weights():
            pass
        return Moved(time.perf_counter() - began, held, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    """Bytes of this process's memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:"))
