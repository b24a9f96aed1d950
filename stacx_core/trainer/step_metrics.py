"""Metrics of one optimizer step, summed over its micro-batches so that the split never shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor

from stacx_core.errors import BatchError


class StepMetrics:
    """Collects what ``compute_loss`` returns.

    A 0-d metric is a numerator like the loss and is divided by the step's normalizer. One of shape ``[2]`` is a sum and
    a count; it is left out when the count is 0.
    """

    def __init__(self) -> None:
        self._numerators: defaultdict[str, float] = defaultdict(float)
        self._pairs: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Take in one micro-batch.

        Raises:
            BatchError: A metric is neither 0-d nor of shape ``[2]``.
        """
        for name, value in metrics.items():
            if value.dim() == 0:
                self._numerators[name] += float(value)
            elif value.shape == (2,):
                pair = self._pairs[name]
                pair[0] += float(value[0])
                pair[1] += float(value[1])
            else:
                raise BatchError(f"metric {name!r} has shape {list(value.shape)}; use 0-d, or [2] for (sum, count)")

    def result(self, normalizer: float) -> dict[str, float]:
        """The metrics of the whole step."""
        means = {name: total / count for name, (total, count) in self._pairs.items() if count}
        return {**{name: total / normalizer for name, total in self._numerators.items()}, **means}
