"""Verifiable rewards: functions from a finished sample to a number or to named numbers."""

from stacx_core.rewards.loading import load_reward
from stacx_core.rewards.scoring import Reward, RewardFn, score

__all__ = ["Reward", "RewardFn", "load_reward", "score"]
