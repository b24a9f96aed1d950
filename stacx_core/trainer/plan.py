"""Settings that follow from others: checked and filled in once, before anything is loaded."""

from __future__ import annotations

from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.errors import ConfigError
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args, Knob
from stacx_core.recipes import ESTIMATOR_RECIPES
from stacx_core.rewards.loading import MODEL
from stacx_core.sampling_knobs import check_over_sampling
from stacx_core.sglang_knobs import check_sglang
from stacx_core.trainer.parallelism import check_megatron
from stacx_core.trainer.pools import check_offload, check_role_workers

_ANSWERS = ("eval_prompt_data", "eval_tasks")
_EVALUATION = (*_ANSWERS, "eval_pair_data", "eval_data")
_NEEDS = {
    "eval_rm_type": ("eval_prompt_data",),
    "eval_temperature": _ANSWERS,
    "eval_max_response_len": _ANSWERS,
    "eval_interval": _EVALUATION,
    "eval_limit": _EVALUATION,
    "skip_eval_before_train": _EVALUATION,
    "harness_timeout": ("harness",),
}
"""Host knob -> the knobs, of those that the recipe has, one of which must be set for it to have an effect."""

_ENVIRONMENT_GIVES = ("prompt_data", "rm_type")
"""Required knobs that ``--environment`` stands in for."""


def complete(config: TrainingConfig, args: Args) -> Args:
    """The arguments of a run with every derived value in place.

    Fills in ``global_batch_size`` and ``num_steps_per_rollout`` from each other, ``loss_aggregation`` from slime's
    switch, ``recompute_log_probs`` for several steps per rollout, and the advantage estimator of the recipe.

    Raises:
        ConfigError: A required knob is unset, or two knobs contradict each other.
    """
    plays = _plays(config, args)
    for name in (*config.requires, "output_dir"):
        if args.get(name) is None and not (plays and name in _ENVIRONMENT_GIVES):
            raise ConfigError(f"recipe {config.name!r} needs {_ways(name, config)}")
    _check_environment(config, args, plays)
    if args.rm_type is None and not plays and any("rewards" in role.reads for role in config.roles):
        raise ConfigError(f"recipe {config.name!r} learns from rewards: name one with --rm-type")
    if args.num_rollout is None and args.num_epoch is None:
        raise ConfigError("say how long to train: --num-rollout or --num-epoch")
    if args.num_rollout is not None and args.num_epoch is not None:
        raise ConfigError("--num-rollout and --num-epoch are both set; keep one")
    _check_effects(args)
    check_megatron(config, args)
    check_sglang(args)
    if args.sglang_url is not None:
        from stacx_core.rollout.sglang.router import check_addresses  # Its HTTP client is of no use to other runs.

        check_addresses(args)
    check_over_sampling(args, lambda: _over_samples(config, args))
    args = _steps(with_aliases(args))
    estimator = next((e for e, recipe in ESTIMATOR_RECIPES.items() if recipe == config.name), None)
    args = args.replace("recipe", algorithm=args.algorithm or config.name, advantage_estimator=estimator)
    if config.check_args is not None:
        resolve_object(config.check_args)(args)
    args = check_role_workers(config, args)
    check_offload(config, args)
    return args


def _plays(config: TrainingConfig, args: Args) -> bool:
    """Whether the samples are episodes of ``--environment``, by a roll-in that takes one in place of prompts."""
    return args.environment is not None and getattr(resolve_object(config.rollout), "takes_environment", False)


def _over_samples(config: TrainingConfig, args: Args) -> bool:
    """Whether the samples are responses to prompts, by a roll-in that can begin more of them than it needs."""
    return args.environment is None and getattr(resolve_object(config.rollout), "over_samples", False)


def _ways(name: str, config: TrainingConfig) -> str:
    """How a required knob can be given."""
    flag = "--" + name.replace("_", "-")
    given = f"{flag} (or STACX_{name.upper()}, or the config file)"
    takes = name == "prompt_data" and config.rollout == TrainingConfig.rollout
    return f"{given}, or episodes to play with --environment" if takes else given


def _check_environment(config: TrainingConfig, args: Args, plays: bool) -> None:
    """Refuse knobs that would be ignored, with an environment or without one."""
    if args.environment is None:
        for knob in HOST_KNOBS:
            given = getattr(args, knob.name) != knob.default and not args.is_default(knob.name)
            if knob.section == "environment" and given:
                raise ConfigError(f"{knob.flag} has no effect without --environment; add it")
        return
    for name in _ENVIRONMENT_GIVES:
        if plays and name in config.requires and args.get(name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} and --environment are both set; the environment brings tasks and reward, so drop one of them"
            )
    if not plays and args.eval_tasks is None:
        raise ConfigError(
            f"recipe {config.name!r} plays no episodes; --environment needs --eval-tasks to evaluate in it"
        )
    if args.eval_tasks is not None and args.eval_prompt_data is not None:
        raise ConfigError("--eval-tasks and --eval-prompt-data are both set; keep one")
    if plays and args.num_epoch is not None and args.num_tasks is None:
        raise ConfigError("--num-epoch needs --num-tasks: without it every task of an environment is a new one")


def _check_effects(args: Args) -> None:
    for knob in HOST_KNOBS:
        switches = [name for name in _NEEDS.get(knob.name, ()) if name in args]
        if switches and _is_asked_for(args, knob) and all(args.get(name) is None for name in switches):
            wanted = " or ".join("--" + name.replace("_", "-") for name in switches)
            raise ConfigError(f"{knob.flag} has no effect without {wanted}; add it, or leave {knob.flag} out")
    if args.get("teacher_url") is not None and args.teacher != "sglang":
        raise ConfigError("--teacher-url has no effect without --teacher sglang; add it, or leave --teacher-url out")
    if args.rm_load is not None and MODEL not in (args.rm_type, args.eval_rm_type):
        raise ConfigError("--rm-load has no effect without --rm-type model or --eval-rm-type model; add one of them")
    if args.dynamic_sampling_filter == "reward_std" and args.n_samples_per_prompt == 1:
        raise ConfigError(
            "--dynamic-sampling-filter reward_std keeps groups whose rewards differ, which a group of one never does; "
            "raise --n-samples-per-prompt, or leave the filter out"
        )


def _is_asked_for(args: Args, knob: Knob) -> bool:
    """Whether the user set another value than the default, which a stored configuration holds too."""
    return not args.is_default(knob.name) and getattr(args, knob.name) != knob.default


def with_aliases(args: Args) -> Args:
    """The arguments with ``loss_aggregation`` as slime's switch ``calculate_per_token_loss`` sets it.

    Raises:
        ConfigError: The two contradict each other.
    """
    if not args.calculate_per_token_loss:
        return args
    if args.loss_aggregation != "token_mean" and not args.is_default("loss_aggregation"):
        raise ConfigError(
            f"--calculate-per-token-loss means --loss-aggregation token_mean, but it is {args.loss_aggregation}"
        )
    return args.replace("--calculate-per-token-loss", loss_aggregation="token_mean")


def _steps(args: Args) -> Args:
    total = args.rollout_batch_size * args.n_samples_per_prompt
    size, steps = args.global_batch_size, args.num_steps_per_rollout
    if size is None:
        size = total // (steps or 1)
    if not 1 <= size <= total:
        raise ConfigError(
            f"a rollout makes {total} responses (--rollout-batch-size x --n-samples-per-prompt), "
            f"which do not fill {steps or 1} step(s) of --global-batch-size {size}"
        )
    if steps is not None and steps != total // size:
        raise ConfigError(
            f"--num-steps-per-rollout {steps} contradicts {total} responses in steps of --global-batch-size {size}"
        )
    steps = total // size
    recompute = args.recompute_log_probs or steps * args.epochs_per_rollout > 1
    return args.replace(global_batch_size=size, num_steps_per_rollout=steps, recompute_log_probs=recompute)
