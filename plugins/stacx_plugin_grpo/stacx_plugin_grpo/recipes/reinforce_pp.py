"""REINFORCE++: the return of each token, whitened over the batch (Hu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stacx_core import Args, ConfigError, TrainingConfig, recipe
from stacx_plugin_grpo import checks, knobs
from stacx_plugin_grpo.policy_recipe import policy_recipe

if TYPE_CHECKING:
    from stacx_core import Batch


def check_args(args: Args) -> None:
    """The checks of the family, and that the advantages are whitened.

    Raises:
        ConfigError: whitening is switched off.
    """
    checks.check_args(args)
    if not args.normalize_advantages:
        raise ConfigError(
            f"recipe {args.algorithm!r} has no other baseline than the mean of the batch: it needs "
            "--normalize-advantages (use rloo or grpo for a baseline per prompt)"
        )


@recipe("reinforce_pp")
def reinforce_pp() -> TrainingConfig:
    """No critic and no groups; the divergence from a reference goes into the reward of each token."""
    return policy_recipe(
        "reinforce_pp",
        "REINFORCE++: clipped policy gradient on token returns whitened over the batch",
        estimator=f"{__name__}:token_returns",
        knobs=(*knobs.POLICY, *knobs.KL_REWARD, *knobs.RETURNS),
        reads={},
        defaults={"n_samples_per_prompt": 1, "normalize_advantages": True},
        check_args=check_args,
    )


def token_returns(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``returns`` and, equal to them, ``advantages``: ``[R_i]`` float32, see ``reinforce_returns``.

    Raises:
        NonFiniteError: a reward that is trained on is NaN or infinite.
    """
    from stacx_plugin_grpo.advantages import penalties, summary, trained_rewards
    from stacx_plugin_grpo.objectives import reinforce_returns

    samples = zip(trained_rewards(batch), penalties(batch, args), batch["loss_masks"], strict=True)
    batch["returns"] = [
        reinforce_returns(reward, penalty, mask, gamma=args.gamma, masking=args.gae_masking)
        for reward, penalty, mask in samples
    ]
    batch["advantages"] = list(batch["returns"])
    return summary(batch)
