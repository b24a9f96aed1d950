"""GSPO: GRPO with the importance ratio of a whole sequence (Zheng et al. 2025)."""

from __future__ import annotations

from stacx_core import Args, ConfigError, TrainingConfig, recipe
from stacx_plugin_grpo import checks
from stacx_plugin_grpo.policy_recipe import policy_recipe


def check_args(args: Args) -> None:
    """The checks of the family, and that sequences weigh alike.

    Raises:
        ConfigError: an aggregation that weights a sequence by its length.
    """
    checks.check_args(args)
    if args.loss_aggregation != "sample_mean":
        raise ConfigError(
            f"--loss-aggregation {args.loss_aggregation} would weight the ratio of a sequence by its length; "
            "gspo needs sample_mean"
        )


@recipe("gspo")
def gspo() -> TrainingConfig:
    """GRPO's advantages; the clips are those of the paper, far tighter because sequence ratios stay near 1."""
    return policy_recipe(
        "gspo",
        "Group sequence policy optimization: GRPO with the importance ratio of a whole sequence",
        actor="stacx_plugin_grpo.specialization:GspoActor",
        defaults={"eps_clip": 3e-4, "eps_clip_high": 4e-4},
        check_args=check_args,
    )
