"""What is reported of episodes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from stacx_core.errors import EpisodeError
from stacx_core.rollout.episodes import OUTCOMES, Episode

SUCCESS_REWARD = 1.0
"""An episode whose rewards add up to at least this is a success."""

logger = logging.getLogger(__name__)


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """``reward_mean`` over the episodes that the environment did not fail, ``success_rate`` over all of them,
    ``turns_mean``, ``cut_actions`` (actions cut at the length limit), one count ``outcome_*`` for each outcome, and
    ``count_*`` of what the environments counted and of the types of what they raised.

    Raises:
        EpisodeError: The environment failed every episode.
    """
    outcomes = Counter(episode.outcome for episode in episodes)
    failed = [episode for episode in episodes if episode.failed]
    if failed:
        first = failed[0]
        told = f"{len(failed)} of {len(episodes)} episodes failed; task {first.task_id}: {first.outcome}: {first.error}"
        if len(failed) == len(episodes):
            raise EpisodeError(told)
        logger.warning(told)
    rewards = [episode.reward for episode in episodes if not episode.failed]
    turns = [turn for episode in episodes for turn in episode.turns]
    counts = Counter[str]()
    for episode in episodes:
        counts.update(episode.counts)
    return {
        "reward_mean": sum(rewards) / len(rewards),
        "success_rate": sum(reward >= SUCCESS_REWARD for reward in rewards) / len(episodes),
        "turns_mean": len(turns) / len(episodes),
        "cut_actions": float(sum(turn.cut for turn in turns)),
        **{f"outcome_{outcome}": float(outcomes[outcome]) for outcome in OUTCOMES},
        **{f"count_{name}": float(count) for name, count in sorted(counts.items())},
    }
