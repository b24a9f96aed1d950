"""``stacx eval``: how well a model works on tasks for software-engineering agents."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stacx_core.cli.knob_options import given_values, knob_option, write_knobs
from stacx_core.cli.output import print_json, print_table
from stacx_core.errors import ConfigError, ExitCode
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args, Knob, environment_values, resolve

if TYPE_CHECKING:
    from stacx_core.swe.evaluation.summary import Summary

KEY = "OPENAI_API_KEY"
"""Environment variable with the key of the endpoint."""
_OWN = (
    Knob("endpoint", str, None, "URL of a model that speaks OpenAI's protocol, in place of --hf-checkpoint; its key "
         f"comes from {KEY}.", "model"),
    Knob("endpoint_model", str, None, "Name of the model there; unset takes the first that it lists.", "model"),
    Knob("samples", int, 1, "Episodes of each task.", "eval", minimum=1),
    Knob("names", str, None, "File with the names of the tasks to take, one a line; unset takes all.", "eval"),
    Knob("sandbox", str, "bubblewrap", "Where tasks run: bubblewrap, docker or swerex:KIND.", "eval"),
    Knob("concurrency", int, None, "Episodes at a time; unset takes as many as the machine holds, at most four a "
         "processor.", "eval", minimum=1),
    Knob("command_timeout", float, 30.0, "Seconds for one command of the agent.", "eval", exclusive_minimum=0),
    Knob("output_limit", int, 10_000, "Characters of a command's output that the agent is shown.", "eval", minimum=1),
)  # fmt: skip
_CHANGED: dict[str, dict[str, Any]] = {
    "eval_temperature": {"help": "Sampling temperature; 0 is greedy."},
    "eval_max_response_len": {"default": 1024, "help": "Most new tokens of an action."},
    "max_turns": {"default": 32},
    "hf_checkpoint": {"help": "Hugging Face folder or hub id of the model."},
    "dtype": {"help": "Precision of the weights."},
    "device": {"help": "Where to run: auto takes CUDA when there is one."},
    "max_sequence_len": {"help": "Longest conversation; unset takes the context of the model."},
}
_SHARED = (
    *("apply_chat_template", "rollout_max_running", "rollout_top_p", "rollout_top_k"),
    *("harness", "harness_timeout", "episode_timeout", "seed", "output_dir", *_CHANGED),
)
_HOST = tuple(replace(knob, **_CHANGED.get(knob.name, {})) for knob in HOST_KNOBS)
OFFERED: tuple[Knob, ...] = (*_OWN, *(knob for knob in _HOST if knob.name in _SHARED))


class EvaluateCommand(click.Command):
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


@click.command("eval", cls=EvaluateCommand)
@click.argument("tasks", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON document.")
def evaluate(tasks: Path, as_json: bool, **flags: Any) -> int:
    """Let a model work on every task of a folder and estimate pass@k.

    The folder of --output-dir gets episodes.jsonl, a line for each episode as it ends, then tasks.jsonl and
    summary.json. The same command again plays what is missing and what an infrastructure error ended; with more
    --samples it adds to an evaluation. Such errors count as neither solved nor failed: they are in no denominator.
    Ends with exit code 1 unless every episode was evaluated.
    """
    args = evaluate_args(flags).replace("argument", tasks=str(tasks))
    from stacx_core.swe.evaluation.evaluating import evaluate as run
    from stacx_core.trainer.interrupts import Interrupts
    from stacx_core.trainer.output_folder import claimed

    folder, say = Path(args.output_dir), lambda line: click.echo(line, err=True)
    with claimed(folder):
        summary = run(args, folder, os.environ.get(KEY), say, Interrupts().installed())
    if as_json:
        print_json(summary.record())
    else:
        _print(summary)
        click.echo(folder.as_posix())
    return ExitCode.OK if summary.complete else ExitCode.RUN_FAILED


def evaluate_args(flags: dict[str, Any]) -> Args:
    """The arguments of flags, environment variables and defaults.

    Raises:
        ConfigError: A value is refused, one that is needed is missing, or two exclude each other.
    """
    mine = {knob.env: os.environ[knob.env] for knob in OFFERED if knob.env in os.environ}
    args = resolve(
        (*_OWN, *_HOST),
        flags=given_values(OFFERED, flags),
        environment=environment_values(OFFERED, mine, {}),
        config={},
        recipe_defaults={},
    )
    if args.output_dir is None:
        raise ConfigError("stacx eval needs --output-dir (or STACX_OUTPUT_DIR)")
    if (args.hf_checkpoint is None) == (args.endpoint is None):
        raise ConfigError("name what to evaluate: either --hf-checkpoint or --endpoint")
    if args.endpoint is None and args.endpoint_model is not None:
        raise ConfigError("--endpoint-model names a model of --endpoint, which is unset")
    if args.harness is None and args.harness_timeout is not None:
        raise ConfigError("--harness-timeout has no effect without --harness; add it")
    if args.endpoint is not None and args.rollout_top_k != -1:
        raise ConfigError("--rollout-top-k is not part of the protocol of --endpoint; leave it out")
    if args.samples > 1 and args.eval_temperature == 0:
        raise ConfigError(
            f"--samples {args.samples} with --eval-temperature 0 would be the same episode {args.samples} times",
            "set --eval-temperature, such as 0.7, or leave out --samples",
        )
    return args


def _print(summary: Summary) -> None:
    for k, estimate in summary.pass_at.items():
        click.echo(f"pass@{k}  {estimate}")
    print_table(("verdict", "episodes"), [(name, str(count)) for name, count in summary.verdicts.items()])
    if summary.harness_crashed:
        click.echo(
            f"{summary.harness_crashed} episodes had a harness that crashed; they count, and stacx show-trajectory has "
            "what it printed"
        )
    if summary.infrastructure_errors:
        click.echo(
            f"{summary.infrastructure_errors} episodes ended by errors that say nothing about the model and are not "
            "counted; run the same command again to play them anew"
        )
