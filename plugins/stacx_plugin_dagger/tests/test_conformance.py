"""The recipes keep what every recipe must."""

from __future__ import annotations

from stacx_core.testing import RecipeConformance


class TestOnlineDagger(RecipeConformance):
    recipe = "online_dagger"


class TestMixtureDaggerOPD(RecipeConformance):
    recipe = "mixture_dagger_opd"


class TestMixtureAggrevateOPD(RecipeConformance):
    recipe = "mixture_aggrevate_opd"
