"""The settings of the family, in groups of which each recipe lists those it uses."""

from __future__ import annotations

from stacx_core import Knob

_LEVELS = ("token", "sequence", "geometric")

CLIP = (
    Knob("eps_clip", float, 0.2, "Lower clip: a ratio below 1 - eps earns nothing more.", "grpo", minimum=0),
    Knob("eps_clip_high", float, None, "Upper clip above 1; unset means --eps-clip.", "grpo", minimum=0),
)

DUAL_CLIP = (
    Knob("eps_clip_c", float, None, "Dual clip: with a negative advantage A the loss of a token is at most -c A; "
         "unset means no bound.", "grpo", exclusive_minimum=1),
)  # fmt: skip

REGULARIZERS = (
    Knob("use_kl_loss", bool, False, "Add the divergence from --ref-load to the loss.", "grpo"),
    Knob("kl_loss_coef", float, 0.0, "Weight of that divergence.", "grpo", minimum=0),
    Knob("kl_loss_type", str, None, "Estimator of the divergence; unset takes k1 in the reward, and in the loss "
         "low_var_kl, which is k3 with clamps (k2 for reinforce_pp_baseline).", "grpo",
         choices=("k1", "k2", "k3", "low_var_kl")),
    Knob("use_unbiased_kl", bool, False, "Multiply the estimator by the importance ratio, so that its gradient is "
         "that of the reverse KL.", "grpo"),
    Knob("entropy_coef", float, 0.0, "Weight of the entropy bonus.", "grpo"),
)  # fmt: skip

MISMATCH = (
    Knob("use_tis", bool, False, "Weight the policy loss by the bounded ratio of the trainer's to the engine's "
         "probability.", "grpo"),
    Knob("tis_clip", float, 2.0, "Upper bound of the ratio.", "grpo", exclusive_minimum=0),
    Knob("tis_clip_low", float, 0.0, "Lower bound of the ratio.", "grpo", minimum=0),
    Knob("tis_level", str, "token", "Ratio of each token, of the sequence, or the geometric mean over it.", "grpo",
         choices=_LEVELS),
    Knob("tis_mode", str, "clip", "Beyond a bound: clip to it, truncate to the upper one only, or mask, which at "
         "token level is IcePop.", "grpo", choices=("clip", "truncate", "mask")),
    Knob("tis_batch_normalize", bool, False, "Divide the weights by their mean over the rollout.", "grpo"),
    Knob("use_rs", bool, False, "Leave out of the policy loss what has a ratio outside of its bounds.", "grpo"),
    Knob("rs_level", str, "token", "Ratio that rejection looks at, as for --tis-level.", "grpo", choices=_LEVELS),
    Knob("rs_upper_bound", float, None, "Largest ratio kept; unset takes --tis-clip.", "grpo", exclusive_minimum=0),
    Knob("rs_lower_bound", float, None, "Smallest ratio kept; unset means 1 over the largest.", "grpo", minimum=0),
    Knob("rs_veto_threshold", float, None, "Leave out every sequence that has a token with a ratio below this, as in "
         "1e-4.", "grpo", exclusive_minimum=0),
    Knob("use_rollout_logprobs", bool, False, "Take the engine's log-probs as those of the old policy; excludes "
         "--use-tis.", "grpo"),
)  # fmt: skip

OPSM = (
    Knob("use_opsm", bool, False, "Leave out sequences with a negative advantage that the policy has moved away "
         "from.", "grpo"),
    Knob("opsm_delta", float, 1e-4, "Mean drop of their log-probs from which they are left out.", "grpo"),
)  # fmt: skip

SHAPING = (
    Knob("overlong_cache", int, 0, "Tokens before --rollout-max-response-len over which a penalty grows; 0 for none.",
         "grpo", minimum=0),
    Knob("overlong_factor", float, 1.0, "That penalty at the limit.", "grpo", minimum=0),
    Knob("normalize_advantages", bool, False, "Whiten the advantages over all trained tokens of the rollout.", "grpo"),
)  # fmt: skip

GROUPS = (
    Knob("group_of_one", str, "zero", "Advantage where only one rollout of a group votes: 0, the reward as it is, or "
         "an error.", "grpo", choices=("zero", "raw", "error")),
    Knob("truncated_in_group_stats", bool, True, "Let a response cut at the limit vote in its group's statistics, if "
         "it is trained on.", "grpo"),
)  # fmt: skip

GROUP_NORMALIZATION = (
    Knob("disable_grpo_std_normalization", bool, False, "Do not divide by the group's standard deviation (Dr. GRPO).",
         "grpo"),
    Knob("disable_rewards_normalization", bool, False, "Use the rewards as advantages: no group statistics at all.",
         "grpo"),
)  # fmt: skip

KL_REWARD = (
    Knob("kl_coef", float, 0.0, "Weight of the divergence from --ref-load in the reward of each token.", "grpo",
         minimum=0),
)  # fmt: skip

RETURNS = (
    Knob("gamma", float, 1.0, "Discount of each token.", "grpo", minimum=0, maximum=1),
    Knob("gae_masking", str, "trainable", "Tokens that returns and advantages run over: the trained ones, or all.",
         "grpo", choices=("trainable", "all")),
)  # fmt: skip

CRITIC = (
    Knob("lambd", float, 1.0, "Lambda of generalised advantage estimation.", "ppo", minimum=0, maximum=1),
    Knob("gae_bootstrap_truncated", bool, False, "Value the state after a cut response like its last one, not 0.",
         "ppo"),
    Knob("value_clip", float, 0.2, "How far from its old value a value may gain.", "ppo", minimum=0),
    Knob("value_loss_scale", float, 1.0, "Factor of the squared error; some use 0.5.", "ppo", exclusive_minimum=0),
    Knob("critic_load", str, None, "Checkpoint the critic starts from; unset takes --hf-checkpoint.", "ppo"),
    Knob("critic_lr", float, None, "Peak learning rate of the critic; unset takes --lr.", "ppo", minimum=0),
    Knob("num_critic_only_steps", int, 0, "First rollouts that train the critic only.", "ppo", minimum=0),
)  # fmt: skip

POLICY = (*CLIP, *DUAL_CLIP, *REGULARIZERS, *MISMATCH, *OPSM, *SHAPING)
"""What every clipped policy loss has."""
