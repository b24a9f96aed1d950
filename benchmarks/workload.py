"""What both sides train: the size of a step, the reward, and the meter that sits in the reward function."""

from __future__ import annotations

import resource
import time

PROMPTS = 8
GROUP = 8
COMPLETIONS = PROMPTS * GROUP
MAX_NEW_TOKENS = 64
LEARNING_RATE = 1e-5
WARM_UP = 2
"""Steps that are run but not measured."""

RESULT = "RESULT "
"""Starts the line on stdout in which a contender reports."""


def digit_share(text: str, label: str) -> float:
    """Share of digits among the characters, and 1 more for the right sum: graded, so that no update is empty."""
    return sum(c in "0123456789" for c in text) / max(len(text), 1) + float(text.strip() == label)


class Meter:
    """Counts completion tokens, the stop token included, and marks the time at which each step's are complete.

    Both trainers call their reward once per completion, right after generating all of a step. The time from one mark
    to the next holds one update and one generation, so a rate over such intervals covers the whole loop and nothing
    of start-up and shut-down.
    """

    def __init__(self) -> None:
        self._completions = 0
        self._tokens = 0
        self._marks: list[tuple[float, float, int]] = []

    def count(self, tokens: int) -> None:
        """Take in the length of one completion."""
        self._completions += 1
        self._tokens += tokens
        if self._completions % COMPLETIONS == 0:
            self._marks.append((time.perf_counter(), time.process_time(), self._tokens))

    def report(self) -> dict[str, float]:
        """Rates and length over the measured steps, and the peak memory of this process so far."""
        first, last = self._marks[WARM_UP - 1], self._marks[-1]
        seconds, cpu_seconds, tokens = (b - a for a, b in zip(first, last, strict=True))
        steps = len(self._marks) - WARM_UP
        return {
            "tokens_per_second": tokens / seconds,
            "tokens_per_cpu_second": tokens / cpu_seconds,
            "seconds_per_step": seconds / steps,
            "mean_length": tokens / (steps * COMPLETIONS),
            "steps": steps,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


METER = Meter()
"""The meter of this process."""
