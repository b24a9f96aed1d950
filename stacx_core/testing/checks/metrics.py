"""That what a loss reports costs no memory and means the same for every cut into micro-batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stacx_core.errors import RecipeError
from stacx_core.testing.results import NO_LOSS, NotApplicable, Wrong, check
from stacx_core.testing.subject import Probe, Returned
from stacx_core.testing.trial import Trial, close, show


class MetricsProbe(Probe):
    """Says at once what is wrong with a metric."""

    def compute_loss(self, **inputs: Any) -> Returned:
        """Call the hook and look at the metrics."""
        result = super().compute_loss(**inputs)
        for name, value in result[1].items():
            _require_metric(name, value)
        return result


def _require_metric(name: object, value: object) -> None:
    if not isinstance(name, str):
        raise Wrong(f"a metric is named {name!r}; use a string")
    if not isinstance(value, Tensor):
        raise Wrong(f"the metric {name!r} is {type(value).__name__}; return a tensor, 0-d or (sum, count)")
    if value.requires_grad:
        raise Wrong(f"the metric {name!r} carries a graph, which keeps the whole micro-batch in memory; detach it")
    if value.shape not in ((), (2,)):
        raise Wrong(f"the metric {name!r} has shape {list(value.shape)}; use 0-d, or [2] for (sum, count)")
    if not torch.isfinite(value).all():
        raise Wrong(f"the metric {name!r} is {show(value)}")


@check("every", applies_to_failing=True)
def metrics(trial: Trial) -> None:
    """Metrics are named by strings, detached, finite, and 0-d or `[2]`; those of a stage are finite Python numbers.

    Finds: metrics that keep the graph alive, Python numbers, per-token vectors, stages that return nothing.
    """
    try:
        trial.subject.step(trial.prepared, trial.outputs, probe=MetricsProbe())
    except (Wrong, RecipeError):
        raise
    except Exception as error:
        raise NotApplicable(NO_LOSS) from error


@check("every")
def metric_sums(trial: Trial) -> None:
    """Each metric, summed over micro-batches, is the same for every cut: 0-d is a numerator, `[2]` a sum and a count.

    Finds: means over a micro-batch, which weigh a short one like a long one.
    """
    for size in (1, 2):
        found = trial.subject.step(trial.prepared, trial.outputs, micro_batch_size=size).metrics
        for name, expected in trial.outcome.metrics.items():
            if name not in found or not close(found[name], expected, 1e-6):
                value = show(found[name]) if name in found else "missing"
                raise Wrong(
                    f"the metric {name!r} sums to {value} in micro-batches of {size}, but is {show(expected)} in one: "
                    "reduce it by the reducer, or return (sum, count)"
                )
