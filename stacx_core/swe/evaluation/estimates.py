"""Estimates of pass@k, and their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964
"""Normal quantile of a two-sided confidence of 95 %."""


@dataclass(frozen=True)
class Estimate:
    """A share of tasks, with its 95 % confidence interval.

    Args:
        value: Mean over tasks, in [0, 1].
        low, high: Ends of the interval.
        tasks: Number of tasks.
    """

    value: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] of {self.tasks} tasks"


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples of a task solves it.

    ``1 - C(n - c, k) / C(n, k)``, Chen et al. 2021 (arXiv:2107.03374), equation 1.

    Args:
        samples: n, the samples of the task.
        solved: c, how many of them solve it.
        k: From 1 to n.

    Raises:
        ValueError: The numbers do not fit.
    """
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {solved} among {samples} samples is not defined")
    return 1 - math.comb(samples - solved, k) / math.comb(samples, k)


def mean_estimate(values: Sequence[float]) -> Estimate | None:
    """Mean of one value in [0, 1] per task, with Wilson's score interval over the tasks; None without tasks.

    The interval takes the tasks for draws from a population of such tasks. That of a coin is used for pass@k too: no
    other value in [0, 1] with that mean has a larger variance, so that it is rather too wide than too narrow, and it
    says something where all tasks or none are solved.
    (Wilson 1927, Journal of the American Statistical Association 22.)
    """
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    low, high = wilson(mean, count)
    return Estimate(mean, low, high, count)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval with a confidence of 95 %.

    Args:
        share: Of successes, in [0, 1].
        count: Of draws.
    """
    scale = 1 + _Z**2 / count
    centre = (share + _Z**2 / (2 * count)) / scale
    half = _Z / scale * math.sqrt(max(share * (1 - share), 0.0) / count + _Z**2 / (4 * count**2))
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)
