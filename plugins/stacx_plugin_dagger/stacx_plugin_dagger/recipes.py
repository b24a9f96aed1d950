"""Recipes of the family; importing this module registers them."""

from __future__ import annotations

from stacx_core import ModelRole, TrainingConfig, recipe
from stacx_plugin_dagger.knobs import LABEL_KNOBS, MIX_KNOBS, ROLL_IN_KNOBS


def _mixture(name: str, description: str, mode: str) -> TrainingConfig:
    policy = ModelRole(
        name="policy",
        specialization_cls="stacx_plugin_dagger.specialization:MixedLossDaggerOPDSpecialization",
        sync_to_rollout=True,
        reads={"teacher_log_probs": ()},
    )
    return TrainingConfig(
        name=name,
        roles=(policy,),
        description=description,
        family="dagger",
        defaults={"teacher": "model", "dagger_sampling_mode": mode},
        requires=("hf_checkpoint",),
        rollout="stacx_plugin_dagger.mixture:MixtureRollout",
        rollout_fields=("teacher_log_probs",),
        knobs=(*ROLL_IN_KNOBS, *MIX_KNOBS),
        check_args="stacx_plugin_dagger.knobs:check_mixture",
    )


@recipe("online_dagger")
def online_dagger() -> TrainingConfig:
    """DAgger: teacher and student share the driving, the teacher labels every state that either of them visits.

    Ross, Gordon and Bagnell (2011), algorithm 3.1, and its growing data set with ``--dagger-replay``.
    """
    policy = ModelRole(
        name="policy",
        specialization_cls="stacx_core.specialization:CausalDecoderSpecialization",
        sync_to_rollout=True,
        reads={"loss_masks": ()},
        prepare=("stacx_plugin_dagger.labels:weigh_turns",),
    )
    return TrainingConfig(
        name="online_dagger",
        roles=(policy,),
        description="DAgger: the teacher labels every visited state, the student learns the labels by cross-entropy",
        family="dagger",
        defaults={"teacher": "model"},
        requires=("hf_checkpoint",),
        rollout="stacx_plugin_dagger.labels:DaggerRollout",
        knobs=(*ROLL_IN_KNOBS, *LABEL_KNOBS),
        check_args="stacx_plugin_dagger.knobs:check_online_dagger",
    )


@recipe("mixture_dagger_opd")
def mixture_dagger_opd() -> TrainingConfig:
    """Who takes a turn is drawn by the share of the iteration; each turn is learnt according to who took it."""
    return _mixture(
        "mixture_dagger_opd",
        "Teacher and student take turns by chance: cross-entropy on the teacher's, distillation on the student's",
        "beta",
    )


@recipe("mixture_aggrevate_opd")
def mixture_aggrevate_opd() -> TrainingConfig:
    """The student plays the first turns and the teacher the rest, after Ross and Bagnell (2014); same loss."""
    return _mixture(
        "mixture_aggrevate_opd",
        "The student plays the first turns, the teacher the rest: distillation on the former, cross-entropy on these",
        "aggrevate",
    )
