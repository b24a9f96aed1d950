"""Recipes of the family; importing this module registers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stacx_core import Args, DataSync, ModelRole, RoleHandle, SyncChannel, TrainingConfig, hookimpl, recipe
from stacx_plugin_diffusion.knobs import (
    DISTILL_KNOBS,
    DPO_KNOBS,
    GRPO_KNOBS,
    MIX_KNOBS,
    NFT_KNOBS,
    SFT_KNOBS,
    has_average,
    has_reference,
    is_dmd,
)
from stacx_plugin_diffusion.modality import FLOW

HERE = "stacx_plugin_diffusion"
ADVANTAGES = f"{HERE}.advantages:compute_advantages"
FROZEN = f"{HERE}.losses.matching:Frozen"
REFERENCE = ModelRole(
    name="ref", specialization_cls=FROZEN, trainable=False, pool="policy", load_arg="ref_load", inputs_key="states"
)
"""The frozen model of ``--ref-load``, or the checkpoint that the policy begins at."""


@hookimpl
def build_syncs(config: TrainingConfig, args: Args, roles: Mapping[str, RoleHandle]) -> list[SyncChannel]:
    """Let averages and old policies follow."""
    if config.modality != FLOW:
        return []
    from stacx_plugin_diffusion.averages import channels

    return channels(config, args, roles)


def _flow(name: str, roles: tuple[ModelRole, ...], needs: tuple[str, ...] = (), **fields: Any) -> TrainingConfig:
    """A recipe of the family."""
    return TrainingConfig(
        name=name,
        roles=roles,
        family="diffusion",
        requires=("hf_checkpoint", "prompt_data", *needs),
        modality=FLOW,
        supports=("data_parallel",),
        **fields,
    )


@recipe("flow_sft")
def flow_sft() -> TrainingConfig:
    """One role that fits the velocity of data; with ``--ema-decay`` a second one that is the average of its weights."""
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{HERE}.losses.matching:FlowMatching",
        sync_to_rollout=True,
        inputs_key="states",
        reads={"targets": (), "sigmas": (), "example_weights": ()},
    )
    average = ModelRole(
        name="average",
        specialization_cls=FROZEN,
        trainable=False,
        stateful=True,
        pool="policy",
        inputs_key="states",
        when=has_average,
    )
    return _flow(
        name="flow_sft",
        roles=(policy, average),
        description="Flow matching on latents with prompts, optionally weighted by rewards",
        rollout=f"{HERE}.roll_ins.data:DataRollIn",
        knobs=SFT_KNOBS,
        check_args=f"{HERE}.knobs:check_sft",
    )


GROUP = {"n_samples_per_prompt": 8}
"""Default of the recipes that compare the samples of a prompt."""


def _policy_gradient(name: str, description: str, **fields: Any) -> TrainingConfig:
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{HERE}.losses.policy_gradient:PolicyGradient",
        sync_to_rollout=True,
        inputs_key="states",
        reads={
            "sigmas": (),
            "steps": (),
            "next_states": (),
            "next_sigmas": (),
            "second_sigmas": (),
            "rollout_log_probs": (),
            "log_probs": ("ratio_tolerance",),
            "rewards": (),
            "group_indices": (),
            "advantages": (),
            "ref_velocities": ("flow_kl_coef",),
            "old_velocities": ("grpo_guard",),
        },
        prepare=(f"{HERE}.advantages:check_ratios", ADVANTAGES),
    )
    return _flow(
        name=name,
        roles=(policy, REFERENCE),
        syncs=(DataSync("ref", "policy", ("ref_velocities",), when=has_reference),),
        description=description,
        needs=("rm_type",),
        **fields,
    )


@recipe("flow_grpo")
def flow_grpo() -> TrainingConfig:
    """A policy whose every denoising step but the last has noise and is trained, and an optional reference."""
    return _policy_gradient(
        "flow_grpo",
        "Flow-GRPO: a clipped policy gradient on every noisy denoising step",
        rollout=f"{HERE}.roll_ins.sampled:TrajectoryRollIn",
        knobs=GRPO_KNOBS,
        defaults=GROUP,
        check_args=f"{HERE}.knobs:check_grpo",
    )


@recipe("mix_grpo")
def mix_grpo() -> TrainingConfig:
    """The same with noise, and training, in a moving window of the steps."""
    return _policy_gradient(
        "mix_grpo",
        "MixGRPO: noise and training in a moving window of the denoising steps",
        rollout=f"{HERE}.roll_ins.sampled:WindowRollIn",
        knobs=MIX_KNOBS,
        defaults={**GROUP, "dynamics": "cps"},
        check_args=f"{HERE}.knobs:check_mix",
    )


@recipe("diffusion_nft")
def diffusion_nft() -> TrainingConfig:
    """A policy that learns on noised samples of an old policy, which follows it slowly and is what generates."""
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{HERE}.losses.forward_process:ForwardProcess",
        inputs_key="states",
        reads={
            "sigmas": (),
            "noises": (),
            "targets": (),
            "rewards": (),
            "group_indices": (),
            "advantages": (),
            "old_velocities": (),
            "ref_velocities": ("nft_ref_coef",),
        },
        prepare=(ADVANTAGES,),
    )
    old = ModelRole(
        name="old",
        specialization_cls=FROZEN,
        trainable=False,
        stateful=True,
        sync_to_rollout=True,
        pool="policy",
        inputs_key="states",
    )
    return _flow(
        name="diffusion_nft",
        roles=(policy, old, REFERENCE),
        syncs=(
            DataSync("old", "policy", ("old_velocities",)),
            DataSync("ref", "policy", ("ref_velocities",), when=has_reference),
        ),
        description="DiffusionNFT: implicit good and bad policies on noised samples, or advantage-weighted matching",
        needs=("rm_type",),
        rollout=f"{HERE}.roll_ins.sampled:FinalRollIn",
        knobs=NFT_KNOBS,
        defaults=GROUP,
        check_args=f"{HERE}.knobs:check_nft",
    )


@recipe("flow_dpo")
def flow_dpo() -> TrainingConfig:
    """A policy and a frozen reference, whose errors on two samples of one prompt are compared."""
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{HERE}.losses.preference:PairedErrors",
        sync_to_rollout=True,
        inputs_key="states",
        reads={
            "sigmas": (),
            "noises": (),
            "targets": (),
            "ref_velocities": (),
            "pair_ids": (),
            "is_chosen": (),
        },
    )
    return _flow(
        name="flow_dpo",
        roles=(policy, REFERENCE),
        syncs=(DataSync("ref", "policy", ("ref_velocities",)),),
        description="Flow-DPO on pairs of a data set, or on the best and worst of the policy's own samples",
        rollout=f"{HERE}.roll_ins.sampled:pairs",
        knobs=DPO_KNOBS,
        check_args=f"{HERE}.knobs:check_dpo",
    )


@recipe("flow_distill")
def flow_distill() -> TrainingConfig:
    """A student and its teacher; for ``--distill-loss dmd`` also a critic, with an optimizer of its own."""
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{HERE}.losses.distillation:Distillation",
        sync_to_rollout=True,
        inputs_key="states",
        reads={
            "sigmas": (),
            "next_sigmas": ("distill_loss=transition_kl",),
            "second_sigmas": ("distill_loss=transition_kl",),
            "compared_noises": ("distill_loss=dmd",),
            "compared_sigmas": ("distill_loss=dmd",),
            "teacher_velocities": (),
            "critic_velocities": ("distill_loss=dmd",),
        },
        trained_every="student_every",
    )
    teacher = ModelRole(
        name="teacher",
        specialization_cls=FROZEN,
        trainable=False,
        load_arg="teacher_checkpoint",
        overrides={"guidance_scale": "teacher_guidance_scale"},
        inputs_key="compared_states",
    )
    critic = ModelRole(
        name="critic",
        specialization_cls=f"{HERE}.losses.matching:Critic",
        load_arg="teacher_checkpoint",
        overrides={"lr": "critic_lr"},
        inputs_key="compared_states",
        reads={"compared_targets": (), "compared_sigmas": ()},
        when=is_dmd,
    )
    return _flow(
        name="flow_distill",
        roles=(policy, teacher, critic),
        syncs=(
            DataSync("teacher", "policy", ("teacher_velocities",)),
            DataSync("critic", "policy", ("critic_velocities",), when=is_dmd),
        ),
        description="Distillation of a teacher with guidance: velocities, steps, or a generator of few steps",
        rollout=f"{HERE}.roll_ins.student:StudentRollIn",
        knobs=DISTILL_KNOBS,
        check_args=f"{HERE}.knobs:check_distill",
    )
