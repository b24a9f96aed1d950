"""The noise levels that sampling walks through, addressed by integer step, and which of the steps are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from stacx_core import sub_seed
from stacx_plugin_diffusion.objectives.noise_levels import shift_sigma

WINDOW_STRATEGIES = ("random", "progressive", "decay", "exp_decay")


def make_schedule(steps: int, shift: float = 1.0) -> Tensor:
    """T + 1 noise levels from 1 to 0: ``shift_sigma`` of ``1, 1 - 1/T, ..., 1/T``, then 0.

    Step i goes from level i to level i + 1; the last one is step T - 1. Levels are looked up by step and never
    computed back from a timestep: that would not give the same float.

    Args:
        steps: T, at least 1.
        shift: see ``shift_sigma``.

    Returns:
        ``[T + 1]`` float32.

    Raises:
        ValueError: no step, a bad shift, or one that leaves two levels equal in float32.
    """
    if steps < 1:
        raise ValueError(f"a schedule needs at least one step, got {steps}")
    u = torch.arange(steps, 0, -1, dtype=torch.float64) / steps
    sigmas = torch.cat([shift_sigma(u, shift), u.new_zeros(1)]).float()
    check_schedule(sigmas)
    return sigmas


def check_schedule(sigmas: Tensor) -> None:
    """Refuse a table that a step cannot be looked up in.

    Raises:
        ValueError: not ``[T + 1]`` float32 with T at least 1, not finite, not strictly falling, above 1 at its
            start, or not 0 at its end.
    """
    if sigmas.dim() != 1 or len(sigmas) < 2 or sigmas.dtype != torch.float32:
        raise ValueError(f"a schedule is [T + 1] float32 with T >= 1, got {list(sigmas.shape)} {sigmas.dtype}")
    levels = sigmas.tolist()
    if not all(map(math.isfinite, levels)) or levels[0] > 1 or levels[-1] != 0:
        raise ValueError(f"a schedule starts at 1 at most and ends at 0, got {levels[0]} ... {levels[-1]}")
    for step, (level, following) in enumerate(pairwise(levels)):
        if not following < level:
            raise ValueError(
                f"noise levels must fall at every step; step {step} goes from {level} to {following}. "
                "Use fewer steps or a smaller shift"
            )


def choose_steps(candidates: Sequence[int], fraction: float, generator: torch.Generator) -> Tensor:
    """A random share of the steps of one sample to train on, as in DanceGRPO (Xue et al. 2025, arXiv 2505.07818).

    Args:
        candidates: steps to choose from, all different.
        fraction: in (0, 1]; at least one step is chosen, half a step rounds up.
        generator: a CPU generator of this sample, so that the choice does not depend on who shares its batch.

    Returns:
        ``[K]`` int64, rising.

    Raises:
        ValueError: no candidate, or a fraction out of range.
    """
    if not candidates or not 0 < fraction <= 1:
        raise ValueError(f"choose a share in (0, 1] of at least one step, got {fraction} of {list(candidates)}")
    count = max(1, math.floor(fraction * len(candidates) + 0.5))
    order = torch.randperm(len(candidates), generator=generator)[:count]
    return torch.tensor(candidates, dtype=torch.int64)[order].sort().values


@dataclass(frozen=True)
class WindowSchedule:
    """Which contiguous steps are stochastic and trained at each iteration; a function of the iteration alone.

    So a checkpoint that knows its iteration knows its window, and all ranks agree. A window is inside [low, high),
    and the last step of the schedule, which has no noise, is in none (Li et al. 2025, MixGRPO, arXiv 2507.21802).

    ===============  ======================================================================================
    ``random``       any start, afresh at each iteration
    ``progressive``  each start in turn, for ``iterations``
    ``decay``        likewise, for a number that falls linearly from ``iterations`` at the first start to
                     ``least`` at the last
    ``exp_decay``    likewise, for ``ceil(iterations exp(-rate max(0, start - threshold)))``
    ===============  ======================================================================================

    Args:
        steps: T of the schedule.
        size: w, steps per window.
        low, high: bounds; ``high`` is T - 1 at most, which is what None stands for.
        strategy: one of ``WINDOW_STRATEGIES``.
        stride: between one start and the next, from ``low`` on; ``random`` has them all.
        iterations, least: see the table.
        rate, threshold: of ``exp_decay``.
        roll_back: after the last start, begin again; otherwise stay there.
        seed: of ``random``.

    Raises:
        ValueError: a window that does not fit, an unknown strategy, or a number out of range.
    """

    steps: int
    size: int
    low: int = 0
    high: int | None = None
    strategy: str = "random"
    stride: int = 1
    iterations: int = 1
    least: int = 1
    rate: float = 0.0
    threshold: int = 0
    roll_back: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in WINDOW_STRATEGIES:
            raise ValueError(
                f"window strategy {self.strategy!r} is unknown; choose one of {', '.join(WINDOW_STRATEGIES)}"
            )
        if self.size < 1 or self.low < 0 or self.end > self.steps - 1 or self.low + self.size > self.end:
            raise ValueError(
                f"a window of {self.size} steps in [{self.low}, {self.end}) does not fit a schedule of {self.steps}: "
                f"it may use steps 0 to {self.steps - 2}, the last step being without noise"
            )
        if self.stride < 1 or not 1 <= self.least <= self.iterations or self.rate < 0:
            raise ValueError(
                "windows need stride >= 1, 1 <= least <= iterations and rate >= 0, got "
                f"stride {self.stride}, least {self.least}, iterations {self.iterations}, rate {self.rate}"
            )

    @property
    def end(self) -> int:
        """The first step behind all windows."""
        return self.steps - 1 if self.high is None else self.high

    @property
    def starts(self) -> range:
        """Where a window may start, in the order in which they are visited."""
        return range(self.low, self.end - self.size + 1, 1 if self.strategy == "random" else self.stride)

    def window(self, iteration: int) -> range:
        """The steps of the window at ``iteration``, counted from 0.

        Raises:
            ValueError: a negative iteration.
        """
        if iteration < 0:
            raise ValueError(f"iterations are counted from 0, got {iteration}")
        start = self._start(iteration)
        return range(start, start + self.size)

    def _start(self, iteration: int) -> int:
        starts = self.starts
        if self.strategy == "random":
            return starts[sub_seed(self.seed, "window", iteration) % len(starts)]
        spans = [self._iterations_at(start) for start in starts]
        left = iteration % sum(spans) if self.roll_back else iteration
        for start, span in zip(starts, spans, strict=True):
            if left < span:
                return start
            left -= span
        return starts[-1]

    def _iterations_at(self, start: int) -> int:
        if self.strategy == "decay":
            first, last = self.starts[0], self.starts[-1]
            fall = (self.iterations - self.least) * (start - first)
            return self.iterations - (fall // (last - first) if last > first else 0)
        if self.strategy == "exp_decay":
            return max(1, math.ceil(self.iterations * math.exp(-self.rate * max(0, start - self.threshold))))
        return self.iterations
