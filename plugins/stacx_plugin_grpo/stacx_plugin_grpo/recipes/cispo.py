"""CISPO: clip the importance weight and keep the gradient of every token (MiniMax-M1, 2025)."""

from __future__ import annotations

from stacx_core import TrainingConfig, recipe
from stacx_plugin_grpo import knobs
from stacx_plugin_grpo.policy_recipe import GROUP_KNOBS, policy_recipe


@recipe("cispo")
def cispo() -> TrainingConfig:
    """GRPO's advantages; no lower clip, and no dual clip, which bounds a loss that CISPO does not have."""
    return policy_recipe(
        "cispo",
        "Clipped importance-sampling policy optimization: REINFORCE with bounded weights on group-normalised rewards",
        actor="stacx_plugin_grpo.specialization:CispoActor",
        knobs=tuple(knob for knob in GROUP_KNOBS if knob not in knobs.DUAL_CLIP),
        defaults={"eps_clip": 1.0, "eps_clip_high": 0.28},
    )
