"""The conformance suite: what every recipe of every plugin must hold, on generated batches.

`stacx check` runs it. In a plugin's tests:

    from stacx_core.testing import RecipeConformance

    class TestMine(RecipeConformance):
        recipe = "mine"

gives one test per check. `check_recipe(config)` returns the results to a script.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stacx_core.testing.conformance import RecipeConformance
    from stacx_core.testing.results import CHECKS, Check, CheckResult
    from stacx_core.testing.rows import Row, grouped_rows, paired_rows
    from stacx_core.testing.subject import Subject
    from stacx_core.testing.suite import check_recipe

_HOME = {
    "CHECKS": "suite",
    "Check": "results",
    "CheckResult": "results",
    "RecipeConformance": "conformance",
    "Row": "rows",
    "Subject": "subject",
    "check_recipe": "suite",
    "grouped_rows": "rows",
    "paired_rows": "rows",
}

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "RecipeConformance",
    "Row",
    "Subject",
    "check_recipe",
    "grouped_rows",
    "paired_rows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
