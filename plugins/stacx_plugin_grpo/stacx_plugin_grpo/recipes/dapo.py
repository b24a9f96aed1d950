"""DAPO: GRPO with a higher upper clip, a mean over tokens, and only groups that teach something (Yu et al. 2025)."""

from __future__ import annotations

from stacx_core import TrainingConfig, recipe
from stacx_plugin_grpo.policy_recipe import policy_recipe


@recipe("dapo")
def dapo() -> TrainingConfig:
    """A preset of GRPO's settings; the soft punishment of length is meant for limits of many thousand tokens."""
    return policy_recipe(
        "dapo",
        "Decoupled clip and dynamic sampling: GRPO with clip-higher, token mean, group filter and overlong penalty",
        defaults={
            "eps_clip": 0.2,
            "eps_clip_high": 0.28,
            "loss_aggregation": "token_mean",
            "dynamic_sampling_filter": "reward_std",
            "overlong_cache": 4096,
            "rollout_max_response_len": 20480,
        },
    )
