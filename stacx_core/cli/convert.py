"""`stacx convert`: a Hugging Face folder to a distributed checkpoint of Megatron-core, and back."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import click

from stacx_core.errors import ConfigError

SIZE = click.IntRange(min=1)
SECONDS = 24 * 3600.0
"""Most that the processes may take."""


@click.command("convert")
@click.option("--from", "source", metavar="FOLDER", required=True, help="Model to convert; what it is is found out.")
@click.option("--to", "target", metavar="FOLDER", required=True, help="New folder for the other kind.")
@click.option("--tensor-model-parallel-size", "--tp", "tensor", type=SIZE, default=1, metavar="N", show_default=True,
              help="Processes that share each layer's weights.")  # fmt: skip
@click.option("--pipeline-model-parallel-size", "--pp", "pipeline", type=SIZE, default=1, metavar="N",
              show_default=True, help="Processes that share the layers.")  # fmt: skip
@click.option("--expert-model-parallel-size", "--ep", "expert", type=SIZE, default=1, metavar="N", show_default=True,
              help="Processes that share the experts.")  # fmt: skip
def convert(source: str, target: str, tensor: int, pipeline: int, expert: int) -> None:
    """Convert a Hugging Face folder to a distributed checkpoint of Megatron-core, or such a checkpoint back.

    The files of the tokenizer and the configs go along, and weights keep every bit. A distributed checkpoint can be
    loaded in any layout; the sizes say how many processes of this machine share the work, each with its part of the
    model, and how the files are cut. Prints the new folder.
    """
    if find_spec("megatron") is None:
        raise ConfigError("stacx convert needs Megatron-core: pip install 'stacx-core[megatron]'")
    from dataclasses import replace

    from stacx_core.backends.megatron.checkpoints.converting import plan_conversion
    from stacx_core.testing.ranks import Ranks

    folder = Path(target)
    conversion = plan_conversion(Path(source), folder, tensor, pipeline, expert)
    unfinished = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--to {target} cannot be written: {error.strerror}") from error
    try:
        with Ranks(SECONDS, conversion.layout.world_size) as ranks:
            ranks.run(replace(conversion, target=unfinished))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    click.echo(folder.as_posix())
