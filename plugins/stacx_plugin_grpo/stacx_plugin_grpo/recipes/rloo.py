"""RLOO: each response is measured against the mean of the others to the same prompt (Ahmadian et al. 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stacx_core import Args, TrainingConfig, recipe
from stacx_plugin_grpo import knobs
from stacx_plugin_grpo.policy_recipe import policy_recipe

if TYPE_CHECKING:
    from stacx_core import Batch
    from stacx_plugin_grpo.objectives import GroupStatistics


@recipe("rloo")
def rloo() -> TrainingConfig:
    """Leave-one-out advantages and the clipped policy loss; with one step per rollout it is REINFORCE."""
    return policy_recipe(
        "rloo",
        "REINFORCE leave-one-out: clipped policy gradient on rewards minus the mean of the other responses",
        estimator=f"{__name__}:leave_one_out_advantages",
        knobs=(*knobs.POLICY, *knobs.GROUPS),
    )


def leave_one_out_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages`` as GRPO's stage does, with ``leave_one_out`` in place of its normalisation."""
    from stacx_plugin_grpo.advantages import write_group_advantages

    return write_group_advantages(batch, args, leave_one_out)


def leave_one_out(reward: float, rollout: int, group: GroupStatistics) -> float:
    """``A_i = r_i - mean of the others = n / (n - 1) (r_i - mean)``; its baseline does not depend on the response."""
    others = [vote for other, vote in group.votes.items() if other != rollout]
    return reward - sum(others) / len(others)
