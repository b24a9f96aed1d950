"""The settings of the family; free of torch."""

from __future__ import annotations

from stacx_core import Args, ConfigError, Knob


def _below_one(value: float) -> str | None:
    return None if value < 1 else "must be below 1"


FLOW_KNOBS = (
    Knob("height", int, 512, "Height of the samples in pixels.", "flow", minimum=1),
    Knob("width", int, 512, "Width of the samples in pixels.", "flow", minimum=1),
    Knob("sampling_steps", int, 10, "Denoising steps of a sample.", "flow", minimum=1),
    Knob("sigma_shift", float, 1.0, "Shift of the noise levels towards noise: 1 for none, 3 at 1024 x 1024 pixels.",
         "flow", exclusive_minimum=0),
    Knob("guidance_scale", float, 1.0, "Classifier-free guidance of the policy, when it samples and when it is "
         "trained; 1 for none.", "flow", minimum=1),
    Knob("max_states_per_gpu", int, 64, "States that the network denoises at a time.", "flow", minimum=1),
    Knob("lora_rank", int, 0, "Rank of a low-rank adapter that is trained in place of the network; 0 for none.", "flow",
         minimum=0),
    Knob("lora_alpha", float, None, "Scale of the adapter; unset takes its rank.", "flow", exclusive_minimum=0),
    Knob("lora_targets", str, None, "Ends of the names of the layers that it adapts, separated by commas; unset means "
         "all attention.", "flow"),
    Knob("sample_grid", int, 16, "Samples of an evaluation to draw on one picture; 0 for none.", "flow", minimum=0),
)  # fmt: skip
"""What every recipe of the family has."""

_GROUPS = (
    Knob("advantage_std", str, "global", "What a reward's distance from its group's mean is divided by.", "advantages",
         choices=("global", "group", "none")),
    Knob("advantage_clip", float, 5.0, "Largest advantage.", "advantages", exclusive_minimum=0),
    Knob("same_noise", str, "none", "Whether the samples of a group begin at one noise.", "rollout",
         choices=("none", "group")),
)  # fmt: skip

_SIGMA = (
    Knob("sigma_density", str, "logit_normal", "How often each noise level is drawn.", "sigma",
         choices=("uniform", "logit_normal", "mode", "beta")),
    Knob("density_mean", float, 0.0, "Mean of logit_normal.", "sigma"),
    Knob("density_std", float, 1.0, "Standard deviation of logit_normal.", "sigma", exclusive_minimum=0),
    Knob("density_scale", float, 1.29, "Scale of mode.", "sigma"),
    Knob("density_alpha", float, 1.0, "First parameter of beta.", "sigma", exclusive_minimum=0),
    Knob("density_beta", float, 1.0, "Second parameter of beta.", "sigma", exclusive_minimum=0),
    Knob("sigma_min", float, 0.0, "Lowest noise level drawn.", "sigma", minimum=0, maximum=1),
    Knob("sigma_max", float, 1.0, "Highest noise level drawn.", "sigma", minimum=0, maximum=1),
    Knob("sigma_draws", int, 1, "Noise levels drawn for each latent.", "sigma", minimum=1),
)  # fmt: skip

_LOSS_WEIGHT = (
    Knob("loss_weight", str, "none", "How much an error counts at each noise level.", "sigma",
         choices=("none", "linear", "sigma_sqrt", "cosmap", "bell")),
    Knob("loss_weight_slope", float, 1.0, "Slope of the weight linear.", "sigma"),
)  # fmt: skip

_NOISE = (
    Knob(
        "dynamics",
        str,
        "flow_sde",
        "How noise enters a denoising step.",
        "flow_grpo",
        choices=("flow_sde", "dance_sde", "cps"),
    ),
    Knob("eta", float, 0.7, "Amount of that noise.", "flow_grpo", exclusive_minimum=0),
)

_POLICY_GRADIENT = (
    *_NOISE,
    Knob("clip_range", float, 1e-4, "Distance of a ratio from 1 at which it is clipped. Log-probs are means over "
         "dimensions, so it falls with the root of their number.", "flow_grpo", exclusive_minimum=0),
    Knob("clip_range_high", float, None, "That distance above 1; unset takes --clip-range.", "flow_grpo",
         exclusive_minimum=0),
    Knob("step_fraction", float, 1.0, "Share of a sample's noisy steps to train on.", "flow_grpo",
         exclusive_minimum=0, maximum=1),
    Knob("flow_kl_coef", float, 0.0, "Weight of the divergence from the reference.", "flow_grpo", minimum=0),
    Knob("flow_kl", str, "exact", "Divergence: exact, of the steps; or velocity, the mean squared difference.",
         "flow_grpo", choices=("exact", "velocity")),
    Knob("log_prob_reduction", str, "mean", "How dimensions are put together in a log-prob.", "flow_grpo",
         choices=("mean", "sum")),
    Knob("cps_log_prob", str, "gaussian", "Log-prob of --dynamics cps: the Gaussian one, or the published distance.",
         "flow_grpo", choices=("gaussian", "unnormalised")),
    Knob("grpo_guard", bool, False, "Correct ratios for their bias and steps for their scale.", "flow_grpo"),
    Knob("ratio_tolerance", float, 1e-3, "Stop where a ratio before the first update is farther from 1; 0 does not "
         "look.", "flow_grpo", minimum=0),
)  # fmt: skip

_WINDOW = (
    Knob("window_size", int, 2, "Steps that are noisy and trained.", "window", minimum=1),
    Knob("window_low", int, 0, "First step of the first window.", "window", minimum=0),
    Knob("window_high", int, None, "The first step behind all windows; unset means the last step.", "window",
         minimum=1),
    Knob("window_strategy", str, "random", "How the window moves.", "window",
         choices=("random", "progressive", "decay", "exp_decay")),
    Knob("window_stride", int, 1, "Steps from one window to the next.", "window", minimum=1),
    Knob("window_rollouts", int, 25, "Rollouts at a window; for the decays at the first.", "window", minimum=1),
    Knob("window_rollouts_least", int, 1, "Rollouts at the last window of decay.", "window", minimum=1),
    Knob("window_rate", float, 0.1, "Rate of exp_decay.", "window", minimum=0),
    Knob("window_threshold", int, 0, "Start up to which exp_decay does not fall.", "window", minimum=0),
    Knob("window_roll_back", bool, True, "Begin again after the last window.", "window"),
)  # fmt: skip

SFT_KNOBS = (
    *_SIGMA,
    *_LOSS_WEIGHT,
    Knob("prompt_dropout", float, 0.1, "Share of the samples whose prompt is left out, which guidance needs.",
         "flow_sft", minimum=0, maximum=1),
    Knob("eval_data", str, None, "Held-out data, to measure the loss on.", "flow_sft"),
    Knob("rwr_temperature", float, None, "Weight samples by the exponential of their weight over this.", "flow_sft",
         exclusive_minimum=0),
    Knob("ema_decay", float, None, "Keep an average of the weights with this decay.", "flow_sft",
         exclusive_minimum=0, check=_below_one),
)  # fmt: skip

GRPO_KNOBS = (*_GROUPS, *_POLICY_GRADIENT)
MIX_KNOBS = (*GRPO_KNOBS, *_WINDOW)

NFT_KNOBS = (
    *_GROUPS,
    Knob("nft_loss", str, "nft", "Loss: nft, or awm, advantage-weighted matching.", "nft", choices=("nft", "awm")),
    Knob("nft_beta", float, 1.0, "Distance of the two implicit policies.", "nft", exclusive_minimum=0),
    Knob("nft_mode", str, "all", "Which advantages count.", "nft",
         choices=("all", "positive_only", "negative_only", "one_only", "binary")),
    Knob("nft_draws", int, 2, "Noise levels drawn for each sample.", "nft", minimum=1),
    Knob("nft_levels", str, "schedule", "Where they are from: the levels of sampling, or uniform.", "nft",
         choices=("schedule", "uniform")),
    Knob("nft_ref_coef", float, 1e-4, "Weight of the distance from the reference.", "nft", minimum=0),
    Knob("old_decay", str, "linear", "How slowly the old policy follows.", "nft",
         choices=("copy", "linear", "delayed")),
    Knob("awm_weight", str, "sigma", "Weight of the noise levels in awm.", "nft",
         choices=("uniform", "sigma", "sigma_squared", "ghuber")),
    Knob("awm_clip", float, None, "Clip range of awm.", "nft", exclusive_minimum=0),
)  # fmt: skip

DPO_KNOBS = (
    *(knob for knob in _SIGMA if knob.name != "sigma_draws"),
    Knob("online_pairs", bool, False, "Sample pairs and let the reward choose, in place of pairs of --prompt-data.",
         "flow_dpo"),
    Knob("pair_draws", int, 8, "Noise levels drawn for each pair.", "flow_dpo", minimum=1),
    Knob("flow_dpo_beta", float, 2000.0, "Strength of the pull to the reference, for means over dimensions.",
         "flow_dpo", exclusive_minimum=0),
    Knob("flow_dpo_beta_scale", str, "constant", "Whether it is smaller where there is more noise.", "flow_dpo",
         choices=("constant", "data")),
    Knob("flow_dpo_sft_coef", float, 0.0, "Weight of the error on the chosen side.", "flow_dpo", minimum=0),
)  # fmt: skip

DISTILL_KNOBS = (
    *_LOSS_WEIGHT,
    *_NOISE,
    Knob("distill_loss", str, "velocity", "velocity, transition_kl, or dmd for a generator of few steps.",
         "flow_distill", choices=("velocity", "transition_kl", "dmd")),
    Knob("teacher_checkpoint", str, None, "Folder of the teacher; unset means the one the student begins at.",
         "flow_distill"),
    Knob("teacher_guidance_scale", float, 4.0, "Classifier-free guidance of the teacher.", "flow_distill", minimum=1),
    Knob("dmd_noise_min", float, 0.02, "Lowest noise level at which dmd compares.", "flow_distill", minimum=0,
         check=_below_one),
    Knob("dmd_noise_max", float, 0.98, "Highest noise level at which dmd compares.", "flow_distill",
         exclusive_minimum=0, maximum=1),
    Knob("student_every", int, None, "Train the student in every so many-th rollout alone, and the critic of dmd in "
         "all; unset means in all.", "flow_distill", minimum=1),
    Knob("critic_lr", float, None, "Learning rate of the critic; unset takes --lr.", "flow_distill",
         exclusive_minimum=0),
)  # fmt: skip


def check_lora(args: Args) -> None:
    """Refuse settings of an adapter that there is not.

    Raises:
        ConfigError: Naming the flag.
    """
    for flag, value in (("--lora-alpha", args.lora_alpha), ("--lora-targets", args.lora_targets)):
        if value is not None and not args.lora_rank:
            raise ConfigError(f"{flag} has no effect without --lora-rank; add it, or leave {flag} out")


def check_grpo(args: Args) -> None:
    """Refuse groups of one, and what `check_sampled` refuses.

    Raises:
        ConfigError: Naming the flags.
    """
    _check_groups(args)
    check_sampled(args)


def check_sampled(args: Args) -> None:
    """Refuse noise that a schedule cannot have.

    Raises:
        ConfigError: Naming the flags.
    """
    if args.sampling_steps < 2:
        raise ConfigError("--sampling-steps must be at least 2: the last step has no noise, so none would be trained")
    if args.get("dynamics") == "cps" and args.eta > 1:
        raise ConfigError(f"--eta {args.eta} is above 1, the most that --dynamics cps takes")
    if args.get("grpo_guard") and (args.dynamics == "cps" or args.log_prob_reduction == "sum"):
        raise ConfigError("--grpo-guard is for --dynamics flow_sde or dance_sde with --log-prob-reduction mean")
    if args.get("cps_log_prob") == "unnormalised" and args.dynamics != "cps":
        raise ConfigError("--cps-log-prob unnormalised has no effect without --dynamics cps")


def check_mix(args: Args) -> None:
    """Refuse a window that does not fit.

    Raises:
        ConfigError: Naming the flags.
    """
    check_grpo(args)
    end = args.sampling_steps - 1 if args.window_high is None else args.window_high
    if end > args.sampling_steps - 1:
        raise ConfigError(
            f"--window-high {end} is behind the last noisy step of --sampling-steps {args.sampling_steps}, which is "
            f"{args.sampling_steps - 2}: use at most {args.sampling_steps - 1}"
        )
    if args.window_low + args.window_size > end:
        raise ConfigError(
            f"--window-size {args.window_size} does not fit between --window-low {args.window_low} and {end}"
        )
    if args.window_rollouts_least > args.window_rollouts:
        raise ConfigError("--window-rollouts-least is above --window-rollouts")


def check_nft(args: Args) -> None:
    """Refuse groups of one, and awm with nothing that stops it.

    Raises:
        ConfigError: Naming the flags.
    """
    _check_groups(args)
    if args.nft_loss == "awm" and args.awm_clip is None and not args.nft_ref_coef:
        raise ConfigError(
            "--nft-loss awm rewards ever larger errors on bad samples; bound it by --awm-clip or --nft-ref-coef"
        )


def _check_groups(args: Args) -> None:
    if args.n_samples_per_prompt < 2:
        raise ConfigError(
            "--n-samples-per-prompt 1: a sample is compared with others of its prompt, so every advantage would be 0; "
            "use at least 2"
        )


def check_sft(args: Args) -> None:
    """Refuse an empty range of noise levels, and samples of a prompt.

    Raises:
        ConfigError: Naming the flags.
    """
    _check_sigma(args)
    if args.n_samples_per_prompt != 1:
        raise ConfigError(
            f"--n-samples-per-prompt {args.n_samples_per_prompt}: none is sampled here; use 1, and --sigma-draws for "
            "more noise levels of each latent"
        )


def _check_sigma(args: Args) -> None:
    if args.sigma_min > args.sigma_max:
        raise ConfigError(f"--sigma-min {args.sigma_min} is above --sigma-max {args.sigma_max}")


def check_dpo(args: Args) -> None:
    """Refuse pairs without a way to make them.

    Raises:
        ConfigError: Naming the flags.
    """
    _check_sigma(args)
    if args.loss_aggregation != "sample_mean":
        raise ConfigError(
            f"--loss-aggregation {args.loss_aggregation} weighs states; a loss of pairs has sample_mean alone"
        )
    if args.online_pairs and (args.rm_type is None or args.n_samples_per_prompt < 2):
        raise ConfigError("--online-pairs needs --rm-type, and --n-samples-per-prompt of at least 2")
    if not args.online_pairs and args.n_samples_per_prompt != 1:
        raise ConfigError("--n-samples-per-prompt must be 1 without --online-pairs: a row brings its pair")


def check_distill(args: Args) -> None:
    """Refuse settings of another loss.

    Raises:
        ConfigError: Naming the flags.
    """
    if args.distill_loss == "transition_kl":
        check_sampled(args)
    if args.distill_loss == "dmd" and args.guidance_scale > 1:
        raise ConfigError(
            f"--guidance-scale {args.guidance_scale:g} is of the student, whose few steps of --distill-loss dmd have "
            "none; --teacher-guidance-scale is the teacher's"
        )
    if args.dmd_noise_min >= args.dmd_noise_max:
        raise ConfigError("--dmd-noise-min must be below --dmd-noise-max")
    if args.distill_loss == "dmd" and args.num_steps_per_rollout * args.epochs_per_rollout > 1:
        raise ConfigError(
            "--distill-loss dmd compares samples of the very weights that it trains: take one step per rollout, by "
            "leaving out --global-batch-size, --num-steps-per-rollout and --epochs-per-rollout"
        )
    for flag, value in (("--critic-lr", args.critic_lr), ("--student-every", args.student_every)):
        if args.distill_loss != "dmd" and value is not None:
            raise ConfigError(f"{flag} has no effect without --distill-loss dmd; leave it out")


def has_reference(args: Args) -> bool:
    """Whether the loss reads the reference's velocities."""
    return bool(args.get("flow_kl_coef") or args.get("nft_ref_coef"))


def has_average(args: Args) -> bool:
    """Whether an average of the policy's weights is kept."""
    return args.get("ema_decay") is not None


def is_dmd(args: Args) -> bool:
    """Whether a generator is trained with a critic."""
    return bool(args.get("distill_loss") == "dmd")
