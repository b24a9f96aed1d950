"""Knobs of rollouts that begin more responses than they need and stop the rest half-way."""

from __future__ import annotations

from collections.abc import Callable

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args, Knob

SAMPLING_KNOBS: tuple[Knob, ...] = (
    Knob("over_sampling_batch_size", int, None, "Prompts to begin in each round of sampling; the rest is stopped when "
         "--rollout-batch-size groups are there. Unset begins what is missing.", "rollout", minimum=1),
    Knob("partial_rollout", bool, False, "Go on in the next rollout with responses that were stopped half-way.",
         "rollout"),
    Knob("mask_offpolicy_in_partial_rollout", bool, False, "Do not train on tokens that older weights sampled.",
         "rollout"),
)  # fmt: skip


def check_over_sampling(args: Args, over_samples: Callable[[], bool]) -> None:
    """Refuse what would be ignored, or what the engine or the roll-in cannot do.

    Args:
        args: Of the run.
        over_samples: Whether the run's roll-in can begin more groups than it needs.

    Raises:
        ConfigError: Naming the flag and the ways out.
    """
    begun = args.over_sampling_batch_size
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        raise ConfigError("--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout; add it")
    if args.partial_rollout and begun is None:
        raise ConfigError(
            "--partial-rollout has no effect without --over-sampling-batch-size: nothing is stopped half-way; add it"
        )
    if begun is None:
        return
    if args.rollout_engine != "sglang":
        raise ConfigError(
            f"--over-sampling-batch-size needs --rollout-engine sglang: the {args.rollout_engine} engine decodes a "
            "batch to its end and cannot be stopped half-way"
        )
    if not over_samples():
        played = "episodes" if args.environment is not None else "the samples of this recipe"
        raise ConfigError(
            f"--over-sampling-batch-size is for responses sampled to prompts; {played} cannot be stopped half-way, so "
            "leave it out"
        )
    if begun < args.rollout_batch_size:
        raise ConfigError(
            f"--over-sampling-batch-size {begun} is below --rollout-batch-size {args.rollout_batch_size}; raise it"
        )
    if args.partial_rollout and begun == args.rollout_batch_size and args.dynamic_sampling_filter is None:
        raise ConfigError(
            f"--partial-rollout has no effect: --over-sampling-batch-size {begun} is --rollout-batch-size, and no "
            "--dynamic-sampling-filter asks for more, so that nothing is stopped half-way; raise it"
        )
