"""The whole-batch stages of a role, and what they must return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stacx_core.config import ModelRole, resolve_object
from stacx_core.data.batch import Batch
from stacx_core.errors import RecipeError
from stacx_core.knobs import Args


def stage_name(stage: str | Callable[..., Any]) -> str:
    """What messages call a stage."""
    return stage if isinstance(stage, str) else stage.__qualname__


def run_stages(
    role: ModelRole, batch: Batch, args: Args, stages: Sequence[str | Callable[..., Any]] | None = None
) -> dict[str, float]:
    """Run the stages in order on the batch, in place: all of the role unless told.

    Returns:
        The metrics of all stages.

    Raises:
        RecipeError: A stage returns something else than named finite numbers, or turns a list of the batch into
            something else; names the stage.
    """
    metrics: dict[str, float] = {}
    for stage in role.prepare if stages is None else stages:
        lists = [key for key, value in batch.items() if isinstance(value, list)]
        name = f"stage {stage_name(stage)} of role {role.name!r}"
        metrics |= _measured(name, resolve_object(stage)(batch, args))
        for key in lists:
            if key in batch and not isinstance(batch[key], list):
                kind = type(batch[key]).__name__
                raise RecipeError(f"{name} makes batch key {key!r} a {kind}; keep a list with one entry per sample")
    return metrics


def _measured(name: str, returned: Any) -> dict[str, float]:
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise RecipeError(f"{name} returns {kind}, not a dictionary of metrics; return {{}} if there are none")
    for metric, value in returned.items():
        number = isinstance(value, int | float) and math.isfinite(value)
        if not isinstance(metric, str) or not number:
            raise RecipeError(f"{name} returns {metric!r}: {value!r}; metrics are finite numbers by name")
    return {metric: float(value) for metric, value in returned.items()}
