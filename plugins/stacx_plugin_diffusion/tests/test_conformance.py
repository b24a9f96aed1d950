"""All six recipes keep what every recipe must."""

from __future__ import annotations

from stacx_core.testing import RecipeConformance


class TestFlowSft(RecipeConformance):
    recipe = "flow_sft"


class TestFlowGrpo(RecipeConformance):
    recipe = "flow_grpo"


class TestMixGrpo(RecipeConformance):
    recipe = "mix_grpo"


class TestDiffusionNft(RecipeConformance):
    recipe = "diffusion_nft"


class TestFlowDpo(RecipeConformance):
    recipe = "flow_dpo"


class TestFlowDistill(RecipeConformance):
    recipe = "flow_distill"
