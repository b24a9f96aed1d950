"""REINFORCE++-baseline: the mean of the group as baseline, whitened over the batch (Hu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stacx_core import Args, TrainingConfig, recipe
from stacx_plugin_grpo import knobs
from stacx_plugin_grpo.policy_recipe import policy_recipe
from stacx_plugin_grpo.recipes.reinforce_pp import check_args

if TYPE_CHECKING:
    from stacx_core import Batch


@recipe("reinforce_pp_baseline")
def reinforce_pp_baseline() -> TrainingConfig:
    """As GRPO, but divided by the deviation of the whole batch instead of each group's."""
    return policy_recipe(
        "reinforce_pp_baseline",
        "REINFORCE++ with the mean of the group as baseline: advantages whitened over the batch",
        estimator=f"{__name__}:centred_advantages",
        knobs=(*knobs.POLICY, *knobs.GROUPS, *knobs.KL_REWARD),
        actor="stacx_plugin_grpo.specialization:ReinforceBaselineActor",
        defaults={"normalize_advantages": True},
        check_args=check_args,
    )


def centred_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages``: ``A_t = r_i - mean of the group - kl_coef kl_t``, ``[R_i]`` float32."""
    from stacx_plugin_grpo.advantages import advantage_summary, penalties, write_group_advantages
    from stacx_plugin_grpo.objectives.group_advantages import centred

    metrics = write_group_advantages(batch, args, centred)
    pairs = zip(batch["advantages"], penalties(batch, args), strict=True)
    batch["advantages"] = [advantages - penalty for advantages, penalty in pairs]
    return {**metrics, **advantage_summary(batch)}
