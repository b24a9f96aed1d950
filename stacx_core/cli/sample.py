"""``stacx sample``: what a model makes of prompts, by the recipe it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stacx_core.cli.options import plugin_options
from stacx_core.cli.train import CONFIG_FILE, resolve_args
from stacx_core.cli.train_options import TrainCommand, flag_text
from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.errors import ConfigError
from stacx_core.knobs import Knob


class SampleCommand(TrainCommand):
    """Takes recipe and knobs from the configuration of the run that the checkpoint is of, unless told otherwise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the run's configuration file to the arguments."""
        found = run_config(args) if flag_text(args, "--config", "-c") is None else None
        return super().parse_args(ctx, args if found is None else [*args, "--config", str(found)])


def run_config(args: Sequence[str]) -> Path | None:
    """The configuration of the run whose folder, checkpoint or model in a checkpoint raw arguments name."""
    flags = [argument.startswith("-") and "=" not in argument for argument in ("", *args)]
    named = [a for a, behind_flag in zip(args, flags, strict=False) if not behind_flag and not a.startswith("-")]
    if not named:
        return None
    folder = Path(named[0]).absolute()
    places = (folder, *folder.parents[:3])
    return next((place / CONFIG_FILE for place in places if (place / CONFIG_FILE).is_file()), None)


@click.command(cls=SampleCommand)
@plugin_options
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=16, show_default=True, help="Samples to draw.")
@click.option("-c", "--config", metavar="FILE", help="TOML file of knobs; unset takes the run's own.")
@click.pass_context
def sample(ctx: click.Context, /, checkpoint: Path, output: Path, count: int, config: str | None, **flags: Any) -> None:
    """Draw samples from a model and write them to a file.

    CHECKPOINT is the folder of a run, of one of its checkpoints, or of a model; for a model that no run here has made,
    name the recipe with --algorithm. Every knob of `stacx train` that says how to sample applies.
    """
    recipe: TrainingConfig = ctx.meta["recipe"]
    knobs: Sequence[Knob] = ctx.meta["knobs"]
    args = resolve_args(recipe, knobs, ctx.meta["elsewhere"], flags)
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}")
    args = args.replace("checkpoint", hf_checkpoint=str(model_folder(checkpoint, recipe)))
    resolve_object(recipe.modality.sample)(recipe, args, output, count)
    click.echo(output.as_posix())


def model_folder(checkpoint: Path, recipe: TrainingConfig) -> Path:
    """The folder of the model that generates: the one given, or that in a checkpoint or in a run's newest one."""
    roles = sorted(recipe.roles, key=lambda role: not role.sync_to_rollout)
    for place in (checkpoint, checkpoint / "checkpoints" / "latest"):
        for role in roles:
            if (place / role.name).is_dir():
                return place / role.name
    return checkpoint
