"""``stacx train``: resolve every knob, then run the recipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stacx_core.cli.knob_options import given_values
from stacx_core.cli.options import plugin_options
from stacx_core.cli.train_options import TrainCommand, chosen_config_file
from stacx_core.config import TrainingConfig
from stacx_core.errors import ExitCode, WorkerError
from stacx_core.knobs import Args, Knob, environment_values, render_config, resolve

CONFIG_FILE = "config.toml"


@click.command(cls=TrainCommand)
@plugin_options
@click.option("-c", "--config", metavar="FILE", help="TOML file of knobs; see --print-config.")
@click.option("--print-config", is_flag=True, help="Print the resolved configuration as TOML and stop.")
@click.option("--dry-run", is_flag=True, help="Check knobs, tokenizer, data and reward, load no model, and stop.")
@click.pass_context
def train(ctx: click.Context, /, config: str | None, print_config: bool, dry_run: bool, **flags: Any) -> None:
    """Train a model with a recipe.

    A knob's value comes from its flag, else its STACX_ environment variable, else the config file, else the recipe,
    else the global default. Add --algorithm NAME to --help to see that recipe's own knobs.
    """
    recipe: TrainingConfig = ctx.meta["recipe"]
    knobs: Sequence[Knob] = ctx.meta["knobs"]
    args = resolve_args(recipe, knobs, ctx.meta["elsewhere"], flags)
    from stacx_core.trainer.plan import complete, with_aliases

    if print_config:
        click.echo(render_config(knobs, with_aliases(args)), nl=False)
        return
    completed = complete(recipe, args)
    if dry_run:
        _dry_run(recipe, completed)
        return
    stored = render_config(knobs, with_aliases(args).replace("default", resume="never"))
    ctx.exit(run(recipe, completed, stored))


def resolve_args(
    recipe: TrainingConfig, knobs: Sequence[Knob], elsewhere: dict[str, str], flags: dict[str, Any]
) -> Args:
    """Merge flags, environment, config file and defaults; a knob of the host that the recipe lacks has its default."""
    file = chosen_config_file()
    return resolve(
        recipe.resolved_knobs,
        flags=given_values(knobs, flags),
        environment=environment_values(knobs, os.environ, elsewhere),
        config=file.values(knobs, elsewhere) if file else {},
        config_path=file.path if file else "",
        recipe_defaults=recipe.defaults,
    )


def _dry_run(recipe: TrainingConfig, args: Args) -> None:
    from stacx_core.trainer.factory import load_data

    setup, rollouts = load_data(recipe, args)
    held_out = setup.evaluation.size if setup.evaluation else 0
    source = f"{setup.roll_in.num_prompts} prompts" if args.environment is None else f"tasks of {args.environment}"
    click.echo(
        f"{recipe.name}: {rollouts} rollouts of {args.rollout_batch_size} x {args.n_samples_per_prompt}, "
        f"{source}, {held_out} held out; nothing was trained"
    )


def run(recipe: TrainingConfig, args: Args, stored: str) -> int:
    """Train, with the configuration as given stored beside the results; returns the exit code."""
    from stacx_core.trainer.output_folder import claimed

    print(f"stacx train {recipe.name} -> {args.output_dir}", file=sys.stderr)
    folder = Path(args.output_dir)
    with claimed(folder):
        for restart in range(args.max_restarts + 1):
            try:
                code = _train(recipe, args, stored)
                break
            except WorkerError as error:
                if restart == args.max_restarts:
                    raise
                said = f"{error.message}; restart {restart + 1} of {args.max_restarts} from the last checkpoint"
                print(said, file=sys.stderr)
                args = args.replace("--max-restarts", resume="auto")
    if code == ExitCode.OK:
        print((folder / "checkpoints" / "latest").as_posix())
    return code


def _train(recipe: TrainingConfig, args: Args, stored: str) -> ExitCode:
    """Train to the end, or to an interrupt."""
    from stacx_core.trainer.factory import create_trainer

    trainer = create_trainer(recipe, args)
    try:
        store_config(Path(args.output_dir), stored)
        last = trainer.train()
    except KeyboardInterrupt:
        print(f"interrupted; saved after rollout {trainer.completed}, add --resume to go on", file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        trainer.tracker.close()
        trainer.parts.learner.close()
    if not last:
        print(f"all {trainer.completed} rollouts were done already", file=sys.stderr)
    return ExitCode.OK


def store_config(folder: Path, text: str) -> None:
    """Write ``config.toml``; an earlier, different one of the same run is kept with a number."""
    path = folder / CONFIG_FILE
    if path.exists() and path.read_text(encoding="utf-8") != text:
        number = len(list(folder.glob("config.*.toml"))) + 1
        path.rename(folder / f"config.{number}.toml")
        print(f"the configuration differs from the stored one, kept as config.{number}.toml", file=sys.stderr)
    path.write_text(text, encoding="utf-8")
