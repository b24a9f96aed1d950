"""GRPO: each response is measured against the others to the same prompt (DeepSeekMath, Shao et al. 2024)."""

from __future__ import annotations

from stacx_core import TrainingConfig, recipe
from stacx_plugin_grpo.policy_recipe import policy_recipe


@recipe("grpo")
def grpo() -> TrainingConfig:
    """Group-normalised rewards and the clipped policy loss, one role; the reference is in the same worker."""
    return policy_recipe(
        "grpo", "Group-relative policy optimization: clipped policy gradient on group-normalised rewards"
    )
