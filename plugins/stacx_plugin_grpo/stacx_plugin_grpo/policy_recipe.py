"""What the recipes of the family have in common: one policy that the engine samples from, and its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stacx_core import Args, DataSync, Knob, ModelRole, TrainingConfig
from stacx_plugin_grpo import checks
from stacx_plugin_grpo.knobs import GROUP_NORMALIZATION, GROUPS, POLICY

GROUP_KNOBS = (*POLICY, *GROUPS, *GROUP_NORMALIZATION)
"""The knobs of a recipe that compares the responses to a prompt as GRPO does."""

GROUP_READS: Mapping[str, tuple[str, ...]] = {"group_indices": ()}
"""What such a recipe reads beside the rewards."""

_OPTIONAL_READS: Mapping[str, tuple[str, ...]] = {
    "log_probs": ("recompute_log_probs", "kl_coef", "tis_batch_normalize"),
    "rollout_log_probs": ("use_tis", "use_rs", "rs_veto_threshold", "use_rollout_logprobs"),
    "ref_log_probs": ("use_kl_loss", "kl_coef"),
}
"""Batch key -> the knobs any of which makes the policy read it, where the recipe has them."""

_SHAPING = "stacx_plugin_grpo.shaping"


def estimator_stages(estimator: str, knobs: tuple[Knob, ...]) -> tuple[str, ...]:
    """The whole-batch stages from rewards to advantages, in their order."""
    in_reward = [f"{_SHAPING}:reward_kl"] if any(knob.name == "kl_coef" for knob in knobs) else []
    return (f"{_SHAPING}:shape_overlong", *in_reward, estimator)


def policy_recipe(
    name: str,
    description: str,
    *,
    estimator: str = "stacx_plugin_grpo.advantages:group_advantages",
    knobs: tuple[Knob, ...] = GROUP_KNOBS,
    reads: Mapping[str, tuple[str, ...]] = GROUP_READS,
    actor: str = "stacx_plugin_grpo.specialization:ActorSpecialization",
    defaults: Mapping[str, Any] | None = None,
    check_args: Callable[[Args], None] = checks.check_args,
    frozen_for: str | None = None,
    others: tuple[ModelRole, ...] = (),
    syncs: tuple[DataSync, ...] = (),
) -> TrainingConfig:
    """A recipe with one trained policy; as it stands, GRPO.

    Args:
        name, description, knobs, check_args, syncs: of the recipe.
        estimator: the stage that writes ``advantages``; those before and after it are the family's.
        reads: what the estimator reads beside ``rewards``.
        actor, frozen_for: of the policy.
        defaults: of the recipe; eight responses per prompt unless they say otherwise.
        others: roles beside the policy.
    """
    names = {"recompute_log_probs", *(knob.name for knob in knobs)}
    optional = {key: tuple(knob for knob in wanted if knob in names) for key, wanted in _OPTIONAL_READS.items()}
    after = (f"{_SHAPING}:whiten_advantages", f"{_SHAPING}:normalize_importance")
    policy = ModelRole(
        name="policy",
        specialization_cls=actor,
        sync_to_rollout=True,
        reads={"rewards": (), **reads, "advantages": (), **optional},
        prepare=(*estimator_stages(estimator, knobs), *after),
        frozen_for=frozen_for,
    )
    return TrainingConfig(
        name=name,
        roles=(policy, *others),
        syncs=syncs,
        description=description,
        family="policy-gradient",
        defaults={"n_samples_per_prompt": 8, **(defaults or {})},
        requires=("hf_checkpoint", "prompt_data", "rm_type"),
        rollout_fields=("rollout_log_probs",),
        knobs=knobs,
        check_args=check_args,
    )
