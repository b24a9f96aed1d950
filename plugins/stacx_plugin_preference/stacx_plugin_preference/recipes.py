"""Recipes of the family; importing this module registers them."""

from __future__ import annotations

from stacx_core import DataSync, ModelRole, TrainingConfig, recipe
from stacx_plugin_preference.knobs import DPO_KNOBS, PAIRED, REWARD_MODEL_KNOBS, WITH_REFERENCE, needs_reference

ROLL_IN = "stacx_plugin_preference.pairs:PairRollout"


def _for(*loss_types: str) -> tuple[str, ...]:
    """The condition of a batch key that only these losses read."""
    return tuple(f"dpo_loss_type={name}" for name in loss_types)


@recipe("dpo")
def dpo() -> TrainingConfig:
    """A policy and, for the losses that have one, a frozen reference that scores the same responses.

    The reference is ``--ref-load``, or the checkpoint the policy starts from. Nothing is sampled for training; the
    policy's weights reach the engine for evaluation on ``--eval-prompt-data``.
    """
    policy = ModelRole(
        name="policy",
        specialization_cls="stacx_plugin_preference.specialization:PreferenceSpecialization",
        sync_to_rollout=True,
        reads={
            "is_chosen": (),
            "pair_ids": _for(*PAIRED),
            "ref_log_probs": _for(*WITH_REFERENCE),
            "log_probs": _for("kto"),
            "kto_baseline": _for("kto"),
        },
        prepare=("stacx_plugin_preference.kto:measure_baseline",),
    )
    reference = ModelRole(
        name="ref",
        specialization_cls="stacx_core.specialization:CausalDecoderSpecialization",
        trainable=False,
        pool="policy",
        load_arg="ref_load",
    )
    return TrainingConfig(
        name="dpo",
        roles=(policy, reference),
        syncs=(DataSync("ref", "policy", ("ref_log_probs",), when=needs_reference),),
        description="Direct preference optimization and its family: cDPO, robust, hinge, IPO, SimPO, ORPO, KTO",
        family="preference",
        requires=("hf_checkpoint", "prompt_data"),
        rollout=ROLL_IN,
        knobs=DPO_KNOBS,
        check_args="stacx_plugin_preference.knobs:check_dpo",
    )


@recipe("reward_model")
def reward_model() -> TrainingConfig:
    """One role with a scalar head; what it learns serves other recipes as their reward."""
    reward = ModelRole(
        name="reward",
        specialization_cls="stacx_plugin_preference.reward_model:RewardModelSpecialization",
        head="scalar",
        reads={"is_chosen": (), "pair_ids": ()},
    )
    return TrainingConfig(
        name="reward_model",
        roles=(reward,),
        description="Reward model: a scalar head trained on preferences by Bradley-Terry",
        family="preference",
        requires=("hf_checkpoint", "prompt_data"),
        rollout=ROLL_IN,
        knobs=REWARD_MODEL_KNOBS,
        check_args="stacx_plugin_preference.knobs:check_offline",
    )
