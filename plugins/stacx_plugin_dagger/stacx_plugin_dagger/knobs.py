"""The settings of learning from an expert that can be asked, and the combinations that make no sense."""

from __future__ import annotations

import logging

from stacx_core import Args, ConfigError, Knob
from stacx_plugin_dagger.schedules import BETA_MODES

SAMPLING_MODES = ("beta", "aggrevate", "student", "teacher")

logger = logging.getLogger(__name__)

ROLL_IN_KNOBS: tuple[Knob, ...] = (
    Knob("dagger_sampling_mode", str, "beta", "Who acts: beta draws each turn, aggrevate lets the student play the "
         "first turns and the teacher the rest, student and teacher are one alone.", "dagger", choices=SAMPLING_MODES),
    Knob("dagger_beta_mode", str, "linear", "Shape of the teacher's falling share of turns.", "dagger",
         choices=BETA_MODES),
    Knob("dagger_beta_start", float, 1.0, "The teacher's share at first.", "dagger", minimum=0, maximum=1),
    Knob("dagger_beta_end", float, 0.0, "The teacher's share at last.", "dagger", minimum=0, maximum=1),
    Knob("dagger_beta_warmup", int, 0, "Rollouts at the first share.", "dagger", minimum=0),
    Knob("dagger_beta_decay", int, 5, "Rollouts from the first share to the last.", "dagger", minimum=1),
    Knob("dagger_beta_floor", float, None, "The share never falls below this.", "dagger", minimum=0, maximum=1),
    Knob("aggrevate_start", int, 0, "aggrevate: most turns of the student in the first rollout.", "dagger", minimum=0),
    Knob("aggrevate_step", int, 20, "aggrevate: by how much that limit grows with each rollout.", "dagger", minimum=0),
    Knob("aggrevate_cap", int, 100, "aggrevate: where it stops growing.", "dagger", minimum=0),
    Knob("aggrevate_per", str, "task", "aggrevate: draw the turn of the takeover once per task or per episode.",
         "dagger", choices=("task", "sample")),
    Knob("dagger_seed", int, None, "Seed of coins and takeovers; unset takes --seed.", "dagger", minimum=0),
)  # fmt: skip

LABEL_KNOBS: tuple[Knob, ...] = (
    Knob("dagger_sft_mode", str, "turn", "turn: label every state visited in live episodes. trajectory: replay a "
         "corpus of the teacher's episodes.", "dagger", choices=("turn", "trajectory")),
    Knob("iter_sft_corpus_dir", str, None, "Folder that `stacx collect` wrote, for --dagger-sft-mode trajectory.",
         "dagger"),
    Knob("dagger_replay", int, 0, "Episodes of earlier rollouts, drawn at random, that each rollout trains on again "
         "beside its own: the growing data set of DAgger.", "dagger", minimum=0),
    Knob("dagger_turn_weight", str, "by_token", "Within an episode count every label token the same (by_token), or "
         "every turn (uniform).", "dagger", choices=("uniform", "by_token")),
)  # fmt: skip

MIX_KNOBS: tuple[Knob, ...] = (
    Knob("mix_ce_weight", float, 1.0, "Weight of cross-entropy on the teacher's tokens.", "dagger", minimum=0),
    Knob("mix_k3_weight", float, 1.0, "Weight of K3 on the student's tokens.", "dagger", minimum=0),
)  # fmt: skip

_USED_BY = {
    **{knob.name: ("beta",) for knob in ROLL_IN_KNOBS if knob.name.startswith("dagger_beta_")},
    **{knob.name: ("aggrevate",) for knob in ROLL_IN_KNOBS if knob.name.startswith("aggrevate_")},
    "dagger_seed": ("beta", "aggrevate"),
}


def check_roll_in(args: Args) -> None:
    """Refuse what the way of choosing who acts would ignore.

    Raises:
        ConfigError: naming the flag and the ways out.
    """
    mode = args.dagger_sampling_mode
    for knob in ROLL_IN_KNOBS:
        users = _USED_BY.get(knob.name, SAMPLING_MODES)
        if mode not in users and getattr(args, knob.name) != knob.default:
            raise ConfigError(
                f"{knob.flag} has no effect on --dagger-sampling-mode {mode}; leave it out, or use {' or '.join(users)}"
            )
    floor = args.dagger_beta_floor
    if floor is not None and floor > max(args.dagger_beta_start, args.dagger_beta_end):
        raise ConfigError(
            f"--dagger-beta-floor {floor:g} is above --dagger-beta-start {args.dagger_beta_start:g} and "
            f"--dagger-beta-end {args.dagger_beta_end:g}, so that neither is ever reached; lower it"
        )
    if args.aggrevate_start > args.aggrevate_cap:
        raise ConfigError(
            f"--aggrevate-start {args.aggrevate_start} is above --aggrevate-cap {args.aggrevate_cap}; raise the cap"
        )
    if mode == "beta" and args.dagger_beta_mode == "exponential" and args.dagger_beta_end < 0.01:
        logger.warning(
            "an exponential decay to %g is over after one rollout; --dagger-beta-end 0.01 or more lasts longer",
            args.dagger_beta_end,
        )


def check_mixture(args: Args) -> None:
    """As :func:`check_roll_in`, and refuse a loss of nothing.

    Raises:
        ConfigError: naming the flag and the ways out.
    """
    check_roll_in(args)
    if args.mix_ce_weight == args.mix_k3_weight == 0:
        raise ConfigError("--mix-ce-weight and --mix-k3-weight are both 0, so nothing is learnt; raise one of them")


def check_online_dagger(args: Args) -> None:
    """Refuse settings that contradict each other.

    Raises:
        ConfigError: naming the flag and the ways out.
    """
    if args.dagger_turn_weight == "uniform" and args.loss_aggregation != "sample_mean":
        raise ConfigError(
            f"--dagger-turn-weight uniform weighs turns within an episode, but --loss-aggregation "
            f"{args.loss_aggregation} does not weigh by episode; use sample_mean, or by_token"
        )
    if args.dagger_sft_mode == "turn":
        if args.iter_sft_corpus_dir is not None:
            raise ConfigError(
                "--iter-sft-corpus-dir is replayed only in --dagger-sft-mode trajectory; set that, or leave it out"
            )
        check_roll_in(args)
    elif args.iter_sft_corpus_dir is None:
        raise ConfigError("--dagger-sft-mode trajectory replays a corpus: name its folder with --iter-sft-corpus-dir")
    else:
        _check_replay(args)


def _check_replay(args: Args) -> None:
    """Refuse what the replay of a corpus would ignore."""
    of_live_play = (
        *ROLL_IN_KNOBS,
        *(knob for knob in LABEL_KNOBS if knob.name in ("dagger_replay", "dagger_turn_weight")),
    )
    for knob in of_live_play:
        if getattr(args, knob.name) != knob.default and not args.is_default(knob.name):
            raise ConfigError(
                f"{knob.flag} has no effect on --dagger-sft-mode trajectory, which replays a whole corpus; leave it out"
            )
    for name in ("prompt_data", "environment"):
        if args.get(name) is not None and (name == "prompt_data" or args.eval_tasks is None):
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect on --dagger-sft-mode trajectory, which takes its episodes "
                "from --iter-sft-corpus-dir; leave it out"
            )
