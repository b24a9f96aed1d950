"""Combinations of settings that make no sense, refused before a run begins."""

from __future__ import annotations

import logging
from typing import Any

from stacx_core import Args, ConfigError, Knob
from stacx_plugin_grpo import knobs

logger = logging.getLogger(__name__)

_DECLARED = (*knobs.POLICY, *knobs.GROUPS, *knobs.GROUP_NORMALIZATION, *knobs.KL_REWARD, *knobs.RETURNS, *knobs.CRITIC)

_NEEDS: dict[str, tuple[str, ...]] = {
    "kl_loss_coef": ("use_kl_loss",),
    "kl_loss_type": ("use_kl_loss", "kl_coef"),
    "use_unbiased_kl": ("use_kl_loss",),
    "tis_clip": ("use_tis", "use_rs"),
    "tis_clip_low": ("use_tis",),
    "tis_level": ("use_tis",),
    "tis_mode": ("use_tis",),
    "tis_batch_normalize": ("use_tis",),
    "rs_level": ("use_rs",),
    "rs_upper_bound": ("use_rs",),
    "rs_lower_bound": ("use_rs",),
    "opsm_delta": ("use_opsm",),
    "overlong_factor": ("overlong_cache",),
}
"""Knob -> the knobs one of which must be set for it to have an effect."""

_OVERRULED_BY = {
    "disable_grpo_std_normalization": "disable_rewards_normalization",
    "group_of_one": "disable_rewards_normalization",
}
"""Knob -> the knob under which it has no effect."""


def check_args(args: Args) -> None:
    """Refuse settings of the recipe that would be ignored or could train nothing; warn about odd ones.

    Raises:
        ConfigError: naming the flags and the ways out.
    """
    for knob in _DECLARED:
        if knob.name in _NEEDS and knob.name in args:
            _check_has_effect(knob, args)
    _check_overruled(args)
    _check_divergence(args)
    _check_mismatch(args)
    _check_staleness(args)
    _check_groups(args)
    _check_lengths(args)


def _check_has_effect(knob: Knob, args: Args) -> None:
    switches = [name for name in _NEEDS[knob.name] if name in args]
    if _asked(knob, args) and not any(getattr(args, name) for name in switches):
        wanted = " or ".join(_flag(name) for name in switches)
        raise ConfigError(f"{knob.flag} has no effect without {wanted}; add it")


def _check_overruled(args: Args) -> None:
    """Refuse what another setting makes meaningless."""
    asked = {knob.name for knob in _DECLARED if knob.name in args and _asked(knob, args)}
    for name, ruler in _OVERRULED_BY.items():
        if name in asked and args.get(ruler):
            raise ConfigError(f"{_flag(name)} has no effect with {_flag(ruler)}; keep one of the two")
    if "truncated_in_group_stats" in asked and args.mask_truncated:
        raise ConfigError(
            "--no-truncated-in-group-stats has no effect with --mask-truncated, under which cut responses never vote; "
            "keep one of the two"
        )
    if "tis_clip" in asked and not args.use_tis and args.rs_upper_bound is not None:
        raise ConfigError(
            "--tis-clip has no effect on --use-rs with an --rs-upper-bound of its own; drop it, or add --use-tis"
        )


def _asked(knob: Knob, args: Args) -> bool:
    """Whether the user set another value than the default, which a stored configuration holds too."""
    return getattr(args, knob.name) != knob.default and args.origin(knob.name) != "recipe default"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_divergence(args: Args) -> None:
    in_reward = bool(args.get("kl_coef"))
    if in_reward and args.use_kl_loss:
        raise ConfigError("--kl-coef puts the divergence in the reward, --use-kl-loss in the loss; keep one of the two")
    if (in_reward or args.use_kl_loss) and args.ref_load is None:
        use = "--kl-coef" if in_reward else "--use-kl-loss"
        raise ConfigError(f"{use} compares with a frozen reference model; name it with --ref-load")
    if in_reward and args.get("kl_loss_type", "k1") != "k1":
        logger.warning(
            "--kl-loss-type %s in the reward does not have the gradient of the reverse KL; k1 has", args.kl_loss_type
        )
    if args.use_kl_loss and args.kl_loss_coef == 0:
        logger.warning("--use-kl-loss with --kl-loss-coef 0 only measures the divergence")
    elif args.use_kl_loss and args.kl_loss_type == "k1" and not args.use_unbiased_kl:
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
    if args.tis_mode == "truncate" and args.tis_clip_low != 0:
        raise ConfigError("--tis-mode truncate has no lower bound; drop --tis-clip-low, or use --tis-mode clip")
    if args.tis_clip_low > args.tis_clip:
        raise ConfigError(
            f"--tis-clip-low {args.tis_clip_low:g} is above --tis-clip {args.tis_clip:g}; swap the bounds"
        )
    lower, upper = rejection_bounds(args)
    if args.use_rs and lower > upper:
        raise ConfigError(f"rejection keeps ratios from {lower:g} to {upper:g}, which are none; swap the bounds")


def _check_staleness(args: Args) -> None:
    """Refuse samples of old weights without a ratio to those weights; `--recompute-log-probs` is of the new ones."""
    if args.use_tis or args.use_rs or args.use_rollout_logprobs:
        return
    told = (
        "trains on tokens of older weights, which the loss must be told: add --use-tis to weight it by the ratio to "
        "them, --use-rs to leave out tokens with a ratio too far from 1, or --use-rollout-logprobs to clip the ratio "
        "to them"
    )
    if args.get("max_staleness"):
        raise ConfigError(f"--max-staleness {told}")
    if args.get("partial_rollout") and not args.get("mask_offpolicy_in_partial_rollout"):
        raise ConfigError(f"--partial-rollout {told}; --mask-offpolicy-in-partial-rollout does not train on them")


def rejection_bounds(args: Args) -> tuple[float, float]:
    """The smallest and the largest ratio that rejection keeps."""
    upper = args.get("rs_upper_bound", args.tis_clip)
    lower: Any = args.get("rs_lower_bound", 1 / upper)
    return lower, upper


def _check_groups(args: Args) -> None:
    if args.n_samples_per_prompt > 1 or args.get("group_of_one", "raw") == "raw":
        return
    if not args.get("disable_rewards_normalization"):
        raise ConfigError(
            "--n-samples-per-prompt 1 makes groups of one, which have nothing to be compared with: every "
            "advantage would be 0. Sample more per prompt, or train on the reward itself with --group-of-one raw"
        )


def _check_lengths(args: Args) -> None:
    limit = args.rollout_max_response_len
    if args.overlong_cache >= limit:
        raise ConfigError(
            f"--overlong-cache {args.overlong_cache} leaves no length without a penalty below "
            f"--rollout-max-response-len {limit}; a fifth of it is usual: --overlong-cache {limit // 5}"
        )
    if args.get("gae_bootstrap_truncated") and args.mask_truncated:
        raise ConfigError("--gae-bootstrap-truncated has no effect on responses that --mask-truncated leaves out")


def by_sequence(args: Args) -> dict[str, str]:
    """The check of `stacx check` that does not apply where a whole sequence is weighted or left out."""
    levels = args.tis_level if args.use_tis else "token", args.rs_level if args.use_rs else "token"
    if args.use_opsm or args.rs_veto_threshold is not None or levels != ("token", "token"):
        return {"siblings": "a sequence is weighted or left out as a whole"}
    return {}


def over_all_tokens(args: Args) -> dict[str, str]:
    """The check that does not apply where returns run through masked tokens, whose values then count."""
    if args.get("gae_masking") == "all":
        return {"garbage_in_masked_slots": "returns run over all tokens, masked ones included, by choice"}
    return {}
