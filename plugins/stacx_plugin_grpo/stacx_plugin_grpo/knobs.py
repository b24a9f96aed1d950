"""The settings of group-relative policy optimization, and the combinations that make no sense."""

from __future__ import annotations

import logging

from stacx_core import Args, ConfigError, Knob

logger = logging.getLogger(__name__)

_CLIP = (
    Knob("eps_clip", float, 0.2, "Lower clip: a ratio below 1 - eps earns nothing more.", "grpo", minimum=0),
    Knob("eps_clip_high", float, None, "Upper clip above 1; unset means --eps-clip.", "grpo", minimum=0),
    Knob(
        "eps_clip_c",
        float,
        None,
        "Dual clip: with a negative advantage A the loss of a token is at most -c A; unset means no bound.",
        "grpo",
        exclusive_minimum=1,
    ),
)

_REGULARIZERS = (
    Knob("use_kl_loss", bool, False, "Add the divergence from --ref-load to the loss.", "grpo"),
    Knob("kl_loss_coef", float, 0.0, "Weight of that divergence.", "grpo", minimum=0),
    Knob(
        "kl_loss_type",
        str,
        "low_var_kl",
        "Its estimator; low_var_kl is k3 with clamps.",
        "grpo",
        choices=("k1", "k2", "k3", "low_var_kl"),
    ),
    Knob(
        "use_unbiased_kl",
        bool,
        False,
        "Multiply the estimator by the importance ratio, so that its gradient is that of the reverse KL.",
        "grpo",
    ),
    Knob("entropy_coef", float, 0.0, "Weight of the entropy bonus.", "grpo"),
)

_MISMATCH = (
    Knob(
        "use_tis",
        bool,
        False,
        "Weight each token by the truncated ratio of the trainer's to the engine's probability.",
        "grpo",
    ),
    Knob("tis_clip", float, 2.0, "Largest such weight.", "grpo", exclusive_minimum=0),
    Knob("tis_clip_low", float, 0.0, "Smallest such weight.", "grpo", minimum=0),
    Knob(
        "use_rollout_logprobs",
        bool,
        False,
        "Take the engine's log-probs as those of the old policy; excludes --use-tis.",
        "grpo",
    ),
)

_ADVANTAGES = (
    Knob(
        "disable_grpo_std_normalization",
        bool,
        False,
        "Do not divide by the group's standard deviation (Dr. GRPO).",
        "grpo",
    ),
    Knob(
        "disable_rewards_normalization",
        bool,
        False,
        "Use the rewards as advantages: no group statistics at all.",
        "grpo",
    ),
    Knob(
        "group_of_one",
        str,
        "zero",
        "Advantage where only one rollout of a group votes: 0, the reward as it is, or an error.",
        "grpo",
        choices=("zero", "raw", "error"),
    ),
    Knob(
        "truncated_in_group_stats",
        bool,
        True,
        "Let a response cut at the limit vote in its group's mean and deviation, if it is trained on.",
        "grpo",
    ),
)

KNOBS: tuple[Knob, ...] = (*_CLIP, *_REGULARIZERS, *_MISMATCH, *_ADVANTAGES)

_NEEDS_SWITCH = {
    "kl_loss_coef": "use_kl_loss",
    "kl_loss_type": "use_kl_loss",
    "use_unbiased_kl": "use_kl_loss",
    "tis_clip": "use_tis",
    "tis_clip_low": "use_tis",
}


def check_args(args: Args) -> None:
    """Refuse settings that would be ignored or that could train nothing; warn about odd ones.

    Raises:
        ConfigError: naming the flags and the ways out.
    """
    for knob in KNOBS:
        switch = _NEEDS_SWITCH.get(knob.name)
        if switch and getattr(args, knob.name) != knob.default and not getattr(args, switch):
            raise ConfigError(f"{knob.flag} has no effect without --{switch.replace('_', '-')}; add it")
    _check_kl_loss(args)
    _check_mismatch(args)
    _check_groups(args)


def _check_kl_loss(args: Args) -> None:
    if not args.use_kl_loss:
        return
    if args.ref_load is None:
        raise ConfigError("--use-kl-loss compares with a frozen reference model; name it with --ref-load")
    if args.kl_loss_coef == 0:
        logger.warning("--use-kl-loss with --kl-loss-coef 0 only measures the divergence")
    elif args.kl_loss_type == "k1" and not args.use_unbiased_kl:
        logger.warning(
            "--kl-loss-type k1 has zero expected gradient as a loss: it adds noise and no pull towards the "
            "reference; use low_var_kl or k2, or add --use-unbiased-kl"
        )


def _check_mismatch(args: Args) -> None:
    if args.use_tis and args.use_rollout_logprobs:
        raise ConfigError(
            "--use-tis corrects for the gap between the trainer's and the engine's log-probs, which "
            "--use-rollout-logprobs takes to be the old policy; drop one of the two"
        )
    if args.tis_clip_low > args.tis_clip:
        raise ConfigError(
            f"--tis-clip-low {args.tis_clip_low:g} is above --tis-clip {args.tis_clip:g}; swap the bounds"
        )


def _check_groups(args: Args) -> None:
    alone = args.n_samples_per_prompt == 1 and not args.disable_rewards_normalization
    if alone and args.group_of_one != "raw":
        raise ConfigError(
            "--n-samples-per-prompt 1 makes groups of one, which have nothing to be compared with: every "
            "advantage would be 0. Sample more per prompt, or train on the reward itself with "
            "--group-of-one raw or --disable-rewards-normalization"
        )
