"""The checks by topic; importing this package fills `stacx_core.testing.results.CHECKS` in the order below."""

from __future__ import annotations

# isort: off
from stacx_core.testing.checks import (
    structure as structure,
    keys as keys,
    values as values,
    side_effects as side_effects,
    masking as masking,
    targets as targets,
    invariance as invariance,
    edges as edges,
    extremes as extremes,
    metrics as metrics,
    credit as credit,
    direction as direction,
)
# isort: on
