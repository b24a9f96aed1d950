"""The objectives of flow matching: pure functions of tensors that know no model, no batch and no trainer.

Losses are given per item, a sample or one denoising step of a sample: ``[N]`` tensors with what to look at, for a
reducer to sum. The one convention of noise levels and velocities stands in `flow`.
"""

from stacx_plugin_diffusion.objectives.advantages import Advantages, group_advantages, multi_reward_advantages
from stacx_plugin_diffusion.objectives.awm import awm_log_prob
from stacx_plugin_diffusion.objectives.distillation import (
    dmd_critic_terms,
    dmd_generator_terms,
    velocity_distillation_terms,
)
from stacx_plugin_diffusion.objectives.dpo import best_and_worst, flow_dpo_terms, paired
from stacx_plugin_diffusion.objectives.flow import (
    Terms,
    flow_matching_terms,
    interpolate,
    loss_weight,
    noise_from_velocity,
    rwr_weights,
    velocity_error,
    velocity_target,
    x0_from_velocity,
)
from stacx_plugin_diffusion.objectives.guidance import merge_cfg
from stacx_plugin_diffusion.objectives.nft import nft_terms, old_policy_decay, optimality
from stacx_plugin_diffusion.objectives.noise_levels import SigmaDensity, dynamic_shift, shift_sigma
from stacx_plugin_diffusion.objectives.policy_gradient import clipped_terms, guard_terms
from stacx_plugin_diffusion.objectives.schedule import (
    WindowSchedule,
    check_schedule,
    choose_steps,
    make_schedule,
)
from stacx_plugin_diffusion.objectives.transitions import (
    Transition,
    cps_log_prob,
    log_prob,
    transition,
    transition_kl,
)

__all__ = [
    "Advantages",
    "SigmaDensity",
    "Terms",
    "Transition",
    "WindowSchedule",
    "awm_log_prob",
    "best_and_worst",
    "check_schedule",
    "choose_steps",
    "clipped_terms",
    "cps_log_prob",
    "dmd_critic_terms",
    "dmd_generator_terms",
    "dynamic_shift",
    "flow_dpo_terms",
    "flow_matching_terms",
    "group_advantages",
    "guard_terms",
    "interpolate",
    "log_prob",
    "loss_weight",
    "make_schedule",
    "merge_cfg",
    "multi_reward_advantages",
    "nft_terms",
    "noise_from_velocity",
    "old_policy_decay",
    "optimality",
    "paired",
    "rwr_weights",
    "shift_sigma",
    "transition",
    "transition_kl",
    "velocity_distillation_terms",
    "velocity_error",
    "velocity_target",
    "x0_from_velocity",
]
