"""Who acts when: shares that fall over the iterations, and draws that depend on names only.

An iteration is the number of the rollout, from 0. Every draw is the SHA-256 of a text that names it, so a resumed run
repeats them, and no draw depends on how many others were made.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from stacx_core import Args

BETA_MODES = ("linear", "cosine", "exponential", "step")
SMALLEST_BETA = 1e-8
"""An end below it is raised to it in exponential mode, which cannot reach 0."""


@dataclass(frozen=True)
class BetaSchedule:
    """The probability that the teacher takes a turn, by iteration (Ross et al. 2011, algorithm 3.1).

    Args:
        mode: one of ``BETA_MODES``.
        start, end: its values until the warm-up is over and when the decay is.
        warmup: iterations at ``start``.
        decay: iterations from ``start`` to ``end``, at least 1.
        floor: it never falls below this; None for no floor.
    """

    mode: str = "linear"
    start: float = 1.0
    end: float = 0.0
    warmup: int = 0
    decay: int = 5
    floor: float | None = None

    @classmethod
    def of(cls, args: Args) -> BetaSchedule:
        """The schedule that the knobs describe."""
        return cls(
            args.dagger_beta_mode,
            args.dagger_beta_start,
            args.dagger_beta_end,
            args.dagger_beta_warmup,
            args.dagger_beta_decay,
            args.dagger_beta_floor,
        )

    def at(self, iteration: int) -> float:
        """The share of iteration ``iteration``, in 0..1."""
        progress = min(max((iteration - self.warmup) / self.decay, 0.0), 1.0)
        beta = self._decayed(progress)
        return beta if self.floor is None else max(beta, self.floor)

    def _decayed(self, progress: float) -> float:
        if progress in (0.0, 1.0):
            return self.end if progress else self.start
        if self.mode == "linear":
            return self.start + (self.end - self.start) * progress
        if self.mode == "cosine":
            return self.end + (self.start - self.end) * (1 + math.cos(math.pi * progress)) / 2
        if self.mode == "step":
            return self.start if progress < 0.5 else self.end
        ratio = max(self.end, SMALLEST_BETA) / max(self.start, SMALLEST_BETA)
        return float(self.start * ratio**progress)


def kappa_limit(iteration: int, start: int, step: int, cap: int) -> int:
    """The largest number of turns that the student may play before the teacher takes over."""
    return min(start + step * iteration, cap)


def draw_kappa(seed: int, task: str, iteration: int, limit: int, sample: int | None = None) -> int:
    """After how many turns the teacher takes over, uniform over 0..``limit``, both included.

    Args:
        seed: of the roll-in.
        task: name of the task.
        iteration: number of the rollout.
        limit: from :func:`kappa_limit`.
        sample: number of the episode among those of its task, to draw for each; None draws for all at once.
    """
    name = f"{seed}:{task}:{iteration}" if sample is None else f"{seed}:{task}:{sample}:{iteration}"
    return _bits(name) % (limit + 1)


def coin(seed: int, task: str, sample: int, iteration: int, turn: int) -> float:
    """A number in [0, 1) of one turn; the teacher acts when it is below the share of the iteration."""
    return _bits(f"{seed}:{task}:{sample}:{iteration}:{turn}") / 2**64


def label_seed(seed: int, task: str, sample: int, iteration: int, turn: int) -> int:
    """The seed with which the teacher samples the label of a turn."""
    return _bits(f"{seed}:{task}:{sample}:{iteration}:{turn}:label")


def _bits(name: str) -> int:
    """64 bits, the same on every platform."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
