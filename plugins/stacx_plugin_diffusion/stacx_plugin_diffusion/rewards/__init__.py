"""Rewards of decoded media."""

from stacx_plugin_diffusion.rewards.loading import BUILT_IN, load_reward
from stacx_plugin_diffusion.rewards.scoring import MediaReward, Score

__all__ = ["BUILT_IN", "MediaReward", "Score", "load_reward"]
