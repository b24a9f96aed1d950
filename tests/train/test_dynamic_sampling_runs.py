"""Groups that do not pass a filter are replaced by those of further prompts, within bounded rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GRPO = ("--n-samples-per-prompt", "4", "--num-rollout", "2")


def test_groups_without_a_difference_are_replaced(train: Any, rewards: Path, metrics: Any, tmp_path: Path) -> None:
    """Rewards are shares of digits: with four samples of four characters most groups differ, some do not."""
    given = (*GRPO, "--rm-type", "fatal_rewards:digits", "--dynamic-sampling-filter", "reward_std")
    assert train("grpo", *given, "--rollout-max-response-len", "1").code == 0
    for row in metrics(tmp_path / "run"):
        assert row["train/flat_group_frac"] == 0
        assert 1 <= row["rollout/sampling_rounds"] <= 10
    assert sum(row["rollout/filtered_groups"] for row in metrics(tmp_path / "run")) > 0


def test_a_hopeless_reward_skips_the_steps_and_says_so(train: Any, rewards: Path, metrics: Any, tmp_path: Path) -> None:
    given = (*GRPO, "--rm-type", "fatal_rewards:constant", "--dynamic-sampling-filter", "reward_std")
    assert train("grpo", *given, "--dynamic-sampling-max-rounds", "3").code == 0
    for row in metrics(tmp_path / "run"):
        assert row["train/skipped_step"] == 1.0
        assert (row["rollout/sampling_rounds"], row["rollout/filtered_groups"]) == (3.0, 12.0)
        assert row["rollout/reward_mean"] == 0.5


def test_a_hopeless_reward_can_stop_the_run(train: Any, rewards: Path) -> None:
    given = (*GRPO, "--rm-type", "fatal_rewards:constant", "--dynamic-sampling-filter", "reward_std")
    finished = train("grpo", *given, "--dynamic-sampling-max-rounds", "2", "--dynamic-sampling-exhausted", "raise")
    assert finished.code == 1
    assert "only 0 of 4 groups passed reward_std in 2 rounds; raise --dynamic-sampling-max-rounds" in finished.err
