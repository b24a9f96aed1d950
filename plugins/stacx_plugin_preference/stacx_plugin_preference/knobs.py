"""The settings of learning from preferences, and the combinations that make no sense."""

from __future__ import annotations

from stacx_core import Args, ConfigError, Knob

WITH_REFERENCE = ("sigmoid", "robust", "hinge", "ipo", "kto")
LOSS_TYPES = (*WITH_REFERENCE, "simpo", "orpo")
PAIRED = tuple(name for name in LOSS_TYPES if name != "kto")


def _below_half(value: float) -> str | None:
    return None if value < 0.5 else "must be below 0.5: at one half the labels say nothing"


_DATA = (
    Knob("chosen_key", str, "chosen", "Column of the preferred response: text, or chat messages.", "preference"),
    Knob("rejected_key", str, "rejected", "Column of the response it is preferred to.", "preference"),
    Knob(
        "eval_pair_data",
        str,
        None,
        "Held-out preferences, in the same layouts as --prompt-data; the loss and its metrics on them are logged.",
        "preference",
    ),
)

_UNPAIRED_DATA = (
    Knob("completion_key", str, "completion", "kto: column of a response without a partner.", "preference"),
    Knob("desirable_key", str, "label", "kto: column that says whether that response is desirable.", "preference"),
)

_LOSS = (
    Knob("dpo_loss_type", str, "sigmoid", "Which loss of the family.", "preference", choices=LOSS_TYPES),
    Knob(
        "dpo_beta",
        float,
        0.1,
        "Strength of the pull towards the reference; for simpo the scale of the rewards.",
        "preference",
        exclusive_minimum=0,
    ),
    Knob(
        "dpo_label_smoothing",
        float,
        0.0,
        "Share of preferences taken to be the wrong way round; for sigmoid (then cDPO) and robust.",
        "preference",
        minimum=0,
        check=_below_half,
    ),
    Knob(
        "dpo_sft_coef",
        float,
        0.0,
        "Weight of supervised fine-tuning on the chosen response beside the preference loss.",
        "preference",
        minimum=0,
    ),
    Knob("ipo_sum", bool, False, "ipo: compare sums of log-ratios instead of their means per token.", "preference"),
    Knob("simpo_gamma", float, 1.0, "simpo: margin by which the chosen response should win.", "preference", minimum=0),
    Knob("orpo_lambda", float, 0.1, "orpo: weight of the odds ratio.", "preference", minimum=0),
    Knob("kto_desirable_weight", float, 1.0, "kto: weight of desirable responses.", "preference", minimum=0),
    Knob("kto_undesirable_weight", float, 1.0, "kto: weight of undesirable responses.", "preference", minimum=0),
)

DPO_KNOBS: tuple[Knob, ...] = (*_LOSS, *_DATA, *_UNPAIRED_DATA)

REWARD_MODEL_KNOBS: tuple[Knob, ...] = (
    Knob(
        "rm_center_coef",
        float,
        0.0,
        "Weight of the penalty on (chosen reward + rejected reward)^2, which centres the rewards at 0.",
        "preference",
        minimum=0,
    ),
    Knob(
        "margin_key",
        str,
        None,
        "Column with the margin by which the chosen response is better; unset means no margin.",
        "preference",
    ),
    *_DATA,
)

_USED_BY = {
    "dpo_beta": tuple(name for name in LOSS_TYPES if name != "orpo"),
    "dpo_label_smoothing": ("sigmoid", "robust"),
    "dpo_sft_coef": tuple(name for name in PAIRED if name != "orpo"),
    "ipo_sum": ("ipo",),
    "simpo_gamma": ("simpo",),
    "orpo_lambda": ("orpo",),
    "kto_desirable_weight": ("kto",),
    "kto_undesirable_weight": ("kto",),
    "completion_key": ("kto",),
    "desirable_key": ("kto",),
}


def needs_reference(args: Args) -> bool:
    """Whether the loss compares with a frozen reference."""
    return args.dpo_loss_type in WITH_REFERENCE


def check_dpo(args: Args) -> None:
    """Refuse settings that the chosen loss would ignore, and what no loss of the family can do.

    Raises:
        ConfigError: naming the flags and the ways out.
    """
    kind = args.dpo_loss_type
    for knob in DPO_KNOBS:
        users = _USED_BY.get(knob.name, LOSS_TYPES)
        if kind not in users and getattr(args, knob.name) != knob.default:
            raise ConfigError(
                f"{knob.flag} has no effect on --dpo-loss-type {kind}; leave it out, or use one of {', '.join(users)}"
            )
    if kind == "robust" and args.dpo_label_smoothing == 0:
        raise ConfigError(
            "--dpo-loss-type robust corrects for a known share of wrong labels: give it as --dpo-label-smoothing, "
            "or use sigmoid"
        )
    if args.ref_load is not None and not needs_reference(args):
        raise ConfigError(f"--dpo-loss-type {kind} has no reference, so --ref-load has no effect; leave it out")
    if kind == "kto" and args.kto_desirable_weight == args.kto_undesirable_weight == 0:
        raise ConfigError("--kto-desirable-weight and --kto-undesirable-weight are both 0, so nothing would be learnt")
    check_offline(args)


def check_offline(args: Args) -> None:
    """Refuse settings that only mean something for sampled responses or for losses on single tokens.

    Raises:
        ConfigError: naming the flag.
    """
    if args.loss_aggregation != "sample_mean":
        raise ConfigError(
            f"--loss-aggregation {args.loss_aggregation} weights tokens, but a preference has one loss per pair; "
            "use sample_mean, which is the mean over pairs"
        )
    if args.rollout_temperature != 1:
        raise ConfigError("--rollout-temperature must be 1 here: the responses are given, none is sampled")
    if args.n_samples_per_prompt != 1:
        raise ConfigError("--n-samples-per-prompt must be 1 here: the responses are given, none is sampled")
