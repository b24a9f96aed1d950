"""Both recipes keep what every recipe must."""

from __future__ import annotations

from stacx_core.testing import RecipeConformance


class TestDpo(RecipeConformance):
    recipe = "dpo"


class TestRewardModel(RecipeConformance):
    recipe = "reward_model"
