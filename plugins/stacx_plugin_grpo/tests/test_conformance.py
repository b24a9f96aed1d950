"""Every recipe of the family keeps what every recipe must."""

from __future__ import annotations

from stacx_core.testing import RecipeConformance


class TestCispo(RecipeConformance):
    recipe = "cispo"


class TestDapo(RecipeConformance):
    recipe = "dapo"


class TestGrpo(RecipeConformance):
    recipe = "grpo"


class TestGspo(RecipeConformance):
    recipe = "gspo"


class TestPpo(RecipeConformance):
    recipe = "ppo"


class TestReinforcePp(RecipeConformance):
    recipe = "reinforce_pp"


class TestReinforcePpBaseline(RecipeConformance):
    recipe = "reinforce_pp_baseline"


class TestRloo(RecipeConformance):
    recipe = "rloo"
