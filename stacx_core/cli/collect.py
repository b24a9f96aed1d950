"""``stacx collect``: episodes of a teacher, kept as a corpus to learn from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from stacx_core.cli.knob_options import given_values, knob_option, write_knobs
from stacx_core.errors import ConfigError
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args, Knob, environment_values, resolve

_SHARED = (
    *("hf_checkpoint", "dtype", "device", "num_threads"),
    *("prompt_data", "input_key", "label_key", "apply_chat_template", "rollout_shuffle", "max_sequence_len"),
    *("rollout_temperature", "rollout_top_p", "rollout_top_k", "rollout_max_response_len", "rollout_max_running"),
    *("environment", "harness", "harness_timeout", "max_turns", "episode_timeout", "env_workers", "num_tasks"),
    *("rm_type", "rm_load", "reward_key"),
    *("teacher", "teacher_url", "teacher_load", "teacher_dtype", "teacher_retries", "teacher_retry_wait"),
    *("teacher_timeout", "teacher_failure", "teacher_max_failed", "seed", "output_dir"),
)
COLLECT_KNOBS = (
    Knob("num_episodes", int, None, "Episodes the corpus is to have.", "collect", minimum=1),
    Knob("episodes_per_shard", int, 64, "Episodes played together and kept as one file.", "collect", minimum=1),
)
OFFERED: tuple[Knob, ...] = (*COLLECT_KNOBS, *(knob for knob in HOST_KNOBS if knob.name in _SHARED))


class CollectCommand(click.Command):
    """Has one option for every knob that it offers."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The declared options and those of the knobs."""
        return [*super().get_params(ctx), *map(knob_option, OFFERED)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the knobs under their sections."""
        own = [parameter.get_help_record(ctx) for parameter in super().get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in own if record])
        write_knobs(formatter, OFFERED)


@click.command(cls=CollectCommand)
def collect(**flags: Any) -> None:
    """Let a teacher play episodes and keep them as a corpus.

    The folder gets JSONL shards with token ids, loss masks, outcomes and rewards, and a manifest at the end. The same
    command again goes on where it was interrupted; with a larger --num-episodes it adds to a corpus. Learn from it
    with `stacx train --algorithm sft --prompt-data FOLDER`.
    """
    args = collect_args(flags)
    from stacx_core.rollout.collecting import collect_episodes
    from stacx_core.trainer.interrupts import Interrupts
    from stacx_core.trainer.output_folder import claimed

    folder, say = Path(args.output_dir), lambda line: click.echo(line, err=True)
    with claimed(folder):
        manifest = collect_episodes(args, folder, say, Interrupts().installed())
    click.echo(
        f"{manifest['episodes']} episodes, {manifest['trained_tokens']} tokens of the teacher, "
        f"mean reward {manifest['reward_mean']:.3f}",
        err=True,
    )
    click.echo(folder.as_posix())


def collect_args(flags: dict[str, Any]) -> Args:
    """The arguments of flags, environment variables and defaults.

    Raises:
        ConfigError: A value is refused, or one that is needed is missing.
    """
    mine = {knob.env: os.environ[knob.env] for knob in OFFERED if knob.env in os.environ}
    args = resolve(
        (*COLLECT_KNOBS, *HOST_KNOBS),
        flags=given_values(OFFERED, flags),
        environment=environment_values(OFFERED, mine, {}),
        config={},
        recipe_defaults={},
    )
    for name in ("hf_checkpoint", "teacher", "num_episodes", "output_dir"):
        if args.get(name) is None:
            raise ConfigError(f"stacx collect needs --{name.replace('_', '-')} (or STACX_{name.upper()})")
    return args
