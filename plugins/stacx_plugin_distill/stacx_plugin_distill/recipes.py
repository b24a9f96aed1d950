"""Recipes of the family; importing this module registers them, and the hook that moves the teacher."""

from __future__ import annotations

from collections.abc import Mapping

from stacx_core import Args, DataSync, ModelRole, RoleHandle, SyncChannel, TrainingConfig, hookimpl, recipe
from stacx_plugin_distill.knobs import LOSS_KNOBS, SELF_KNOBS, SUPPORT_MODES, over_support

_OVER_SUPPORT = tuple(f"distill_kl_mode={mode}" for mode in SUPPORT_MODES)


def _student() -> ModelRole:
    return ModelRole(
        name="policy",
        specialization_cls="stacx_plugin_distill.specialization:DistillSpecialization",
        sync_to_rollout=True,
        reads={
            "teacher_log_probs": (),
            "teacher_topk_ids": _OVER_SUPPORT,
            "teacher_topk_log_probs": _OVER_SUPPORT,
            "log_probs": ("distill_kl_mode=k3_is",),
        },
    )


@recipe("opd")
def opd() -> TrainingConfig:
    """One student; the teacher is outside the recipe and scores what the student wrote during the rollout."""
    return TrainingConfig(
        name="opd",
        roles=(_student(),),
        description="On-policy distillation: a teacher scores every token of the student's own answers",
        family="distill",
        requires=("hf_checkpoint", "prompt_data"),
        defaults={"teacher": "model"},
        rollout="stacx_plugin_distill.rollout:DistillRollout",
        knobs=LOSS_KNOBS,
        check_args="stacx_plugin_distill.knobs:check_distill",
    )


@recipe("self_distill")
def self_distill() -> TrainingConfig:
    """The policy learns from a slow copy of itself that sees more of the task: a hint, say, or the solution.

    The teacher starts as the policy does and follows it by a moving average, or stays where it began. It scores the
    policy's own response behind a longer prompt of its own.
    """
    teacher = ModelRole(
        name="teacher",
        specialization_cls="stacx_plugin_distill.teacher:TeacherSpecialization",
        trainable=False,
        pool="policy",
        stateful=True,
        inputs_key="teacher_tokens",
    )
    return TrainingConfig(
        name="self_distill",
        roles=(_student(), teacher),
        syncs=(
            DataSync("teacher", "policy", ("teacher_log_probs",)),
            DataSync("teacher", "policy", ("teacher_topk_ids", "teacher_topk_log_probs"), when=over_support),
        ),
        description="Self-distillation: a moving average of the policy teaches it, under a privileged prompt",
        family="distill",
        requires=("hf_checkpoint", "prompt_data", "privileged_key"),
        rollout="stacx_plugin_distill.rollout:PrivilegedRollout",
        knobs=SELF_KNOBS,
        check_args="stacx_plugin_distill.knobs:check_self_distill",
    )


@hookimpl
def build_syncs(config: TrainingConfig, args: Args, roles: Mapping[str, RoleHandle]) -> list[SyncChannel]:
    """The moving average of `self_distill`, unless ``--ema-decay 1`` keeps its teacher as it began."""
    if config.name != "self_distill" or args.ema_decay == 1:
        return []
    from stacx_plugin_distill.teacher import MovingAverage

    return [MovingAverage(roles["teacher"], roles["policy"], args.ema_decay, args.ema_interval)]
