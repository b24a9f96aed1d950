"""PPO: a critic values every state, and advantages are measured against its values (Schulman et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stacx_core import Args, DataSync, ModelRole, TrainingConfig, recipe
from stacx_plugin_grpo import knobs
from stacx_plugin_grpo.policy_recipe import estimator_stages, policy_recipe

if TYPE_CHECKING:
    from stacx_core import Batch

KNOBS = (*knobs.POLICY, *knobs.KL_REWARD, *knobs.RETURNS, *knobs.CRITIC)
GAE = f"{__name__}:gae"


def kl_in_reward(args: Args) -> bool:
    """Whether the critic, too, must know the reference's log-probs."""
    return bool(args.kl_coef)


@recipe("ppo")
def ppo() -> TrainingConfig:
    """The critic sends values and the policy log-probs; then each computes the same returns from the same numbers."""
    critic = ModelRole(
        name="critic",
        specialization_cls="stacx_plugin_grpo.specialization:CriticSpecialization",
        load_arg="critic_load",
        head="scalar",
        reads={"rewards": (), "values": (), "returns": (), "log_probs": (), "ref_log_probs": ("kl_coef",)},
        prepare=estimator_stages(GAE, KNOBS),
        overrides={"lr": "critic_lr"},
    )
    return policy_recipe(
        "ppo",
        "Proximal policy optimization: a critic, generalised advantage estimation and the clipped policy loss",
        estimator=GAE,
        knobs=KNOBS,
        reads={"values": ()},
        defaults={"n_samples_per_prompt": 1},
        frozen_for="num_critic_only_steps",
        others=(critic,),
        syncs=(
            DataSync("critic", "policy", ("values",), mode="exchange", reverse_keys=("log_probs",)),
            DataSync("policy", "critic", ("ref_log_probs",), when=kl_in_reward),
        ),
    )


def gae(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``advantages`` and ``returns``: ``[R_i]`` float32, see ``gae_advantages``.

    Raises:
        NonFiniteError: a reward that is trained on is NaN or infinite.
    """
    from stacx_plugin_grpo.advantages import moments, penalties, summary, trained_rewards, trained_tokens
    from stacx_plugin_grpo.objectives import gae_advantages

    columns = trained_rewards(batch), penalties(batch, args), batch["values"], batch["loss_masks"], batch["truncated"]
    pairs = [
        gae_advantages(
            *(reward, penalty, values, mask),
            gamma=args.gamma,
            lambd=args.lambd,
            masking=args.gae_masking,
            bootstrap=bool(cut and args.gae_bootstrap_truncated),
        )
        for reward, penalty, values, mask, cut in zip(*columns, strict=True)
    ]
    batch["advantages"], batch["returns"] = [a for a, _ in pairs], [g for _, g in pairs]
    return {**summary(batch), **moments("return", trained_tokens(batch["returns"], batch))}
