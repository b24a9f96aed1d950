"""The settings of distillation, and the combinations that make no sense."""

from __future__ import annotations

from stacx_core import Args, ConfigError, Knob

SAMPLED_MODES = ("k3_sample", "k2", "k3_is")
"""Modes that estimate the divergence from the sampled token alone."""

SUPPORT_MODES = ("topk", "gkd")
"""Modes that compare distributions over a support and need the teacher's likeliest tokens."""

MODES = (*SAMPLED_MODES, *SUPPORT_MODES)

LOSS_KNOBS: tuple[Knob, ...] = (
    Knob("distill_kl_mode", str, "k3_sample", "Which divergence from the teacher.", "distill", choices=MODES),
    Knob(
        "distill_topk", int, 32, "topk, gkd: how many tokens the teacher tells at each position.", "distill", minimum=1
    ),
    Knob(
        "distill_tail",
        str,
        "tail",
        "topk: all other tokens as one more event (tail), ignored (none), or renormalised away (renorm).",
        "distill",
        choices=("tail", "none", "renorm"),
    ),
    Knob(
        "distill_missing",
        str,
        "floor",
        "topk, gkd: the student's likeliest tokens that the teacher did not tell get a floor, are left among all other "
        "tokens (tail), or are asked for while sampling (query).",
        "distill",
        choices=("floor", "tail", "query"),
    ),
    Knob(
        "distill_jsd_beta",
        float,
        0.5,
        "gkd: 0 is the forward KL, 1 the reverse KL, between them a Jensen-Shannon divergence.",
        "distill",
        minimum=0,
        maximum=1,
    ),
)

SELF_KNOBS: tuple[Knob, ...] = (
    *LOSS_KNOBS,
    Knob("privileged_key", str, None, "Column of the text that only the teacher sees, before the prompt.", "distill"),
    Knob(
        "ema_decay",
        float,
        0.99,
        "What the teacher keeps of itself when it moves towards the policy; 1 keeps it as it began.",
        "distill",
        minimum=0,
        maximum=1,
    ),
    Knob("ema_interval", int, 1, "Rollouts between two moves of the teacher.", "distill", minimum=1),
)

_USED_BY = {
    "distill_topk": SUPPORT_MODES,
    "distill_tail": ("topk",),
    "distill_missing": SUPPORT_MODES,
    "distill_jsd_beta": ("gkd",),
}


def over_support(args: Args) -> bool:
    """Whether the loss compares distributions over a support."""
    return args.distill_kl_mode in SUPPORT_MODES


def check_distill(args: Args) -> None:
    """Refuse settings that the chosen divergence would ignore.

    Raises:
        ConfigError: naming the flag and the modes that use it.
    """
    mode = args.distill_kl_mode
    for knob in LOSS_KNOBS:
        users = _USED_BY.get(knob.name, MODES)
        if mode not in users and getattr(args, knob.name) != knob.default:
            raise ConfigError(
                f"{knob.flag} has no effect on --distill-kl-mode {mode}; leave it out, or use {' or '.join(users)}"
            )


def check_self_distill(args: Args) -> None:
    """As `check_distill`, for a teacher that is a role of the run.

    Raises:
        ConfigError: naming the flag and the ways out.
    """
    check_distill(args)
    if args.distill_missing == "query":
        raise ConfigError(
            "--distill-missing query asks a teacher of opd; the teacher of self_distill takes floor or tail"
        )
    for name in ("teacher", "teacher_load", "teacher_url", "teacher_failure", "teacher_timeout", "teacher_retries"):
        if name in args and not args.is_default(name):
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect on self_distill, whose teacher is the policy itself or its "
                "average; leave it out, or use opd"
            )
    if args.privileged_key == args.input_key:
        raise ConfigError(f"--privileged-key {args.privileged_key} is the prompt itself; name a column of its own")
