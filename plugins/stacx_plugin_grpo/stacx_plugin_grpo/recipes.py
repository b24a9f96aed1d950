"""Recipes of the family; importing this module registers them."""

from __future__ import annotations

from stacx_core import ModelRole, TrainingConfig, recipe
from stacx_plugin_grpo.knobs import KNOBS


@recipe("grpo")
def grpo() -> TrainingConfig:
    """Group-normalised rewards and the clipped policy loss, one role; the reference is in the same worker."""
    policy = ModelRole(
        name="policy",
        specialization_cls="stacx_plugin_grpo.specialization:ActorSpecialization",
        sync_to_rollout=True,
        reads={
            "rewards": (),
            "group_indices": (),
            "advantages": (),
            "log_probs": ("recompute_log_probs",),
            "rollout_log_probs": ("use_tis", "use_rollout_logprobs"),
            "ref_log_probs": ("use_kl_loss",),
        },
        prepare=("stacx_plugin_grpo.advantages:group_advantages",),
    )
    return TrainingConfig(
        name="grpo",
        roles=(policy,),
        description="Group-relative policy optimization: clipped policy gradient on group-normalised rewards",
        family="grpo",
        defaults={"n_samples_per_prompt": 8},
        requires=("hf_checkpoint", "prompt_data", "rm_type"),
        rollout_fields=("rollout_log_probs",),
        knobs=KNOBS,
        check_args="stacx_plugin_grpo.knobs:check_args",
    )
