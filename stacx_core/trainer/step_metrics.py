"""Metrics of one optimizer step, summed over its micro-batches so that the split never shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from torch import Tensor

from stacx_core.errors import BatchError


class StepMetrics:
    """Collects what ``compute_loss`` returns.

    A 0-d metric is a numerator like the loss and is divided by the step's normalizer. One of shape ``[2]`` is a sum and
    a count; it is left out when the count is 0.
    """

    def __init__(self) -> None:
        self._numerators: defaultdict[str, float] = defaultdict(float)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)

    @classmethod
    def merged(cls, parts: Iterable[StepMetrics]) -> StepMetrics:
        """Those of one step, of which each part has some micro-batches."""
        whole = cls()
        for part in parts:
            for mine, theirs in zip(vars(whole).values(), vars(part).values(), strict=True):
                for name, value in theirs.items():
                    mine[name] += value
        return whole

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Take in one micro-batch.

        Raises:
            BatchError: A metric is neither 0-d nor of shape ``[2]``.
        """
        for name, value in metrics.items():
            if value.dim() == 0:
                self._numerators[name] += float(value)
            elif value.shape == (2,):
                self._sums[name] += float(value[0])
                self._counts[name] += float(value[1])
            else:
                raise BatchError(f"metric {name!r} has shape {list(value.shape)}; use 0-d, or [2] for (sum, count)")

    def result(self, normalizer: float) -> dict[str, float]:
        """The metrics of the whole step."""
        means = {name: self._sums[name] / count for name, count in self._counts.items() if count}
        return {**{name: total / normalizer for name, total in self._numerators.items()}, **means}
