"""Both recipes keep what every recipe must."""

from __future__ import annotations

from stacx_core.testing import RecipeConformance


class TestOpd(RecipeConformance):
    recipe = "opd"


class TestSelfDistill(RecipeConformance):
    recipe = "self_distill"
