"""``stacx plot``: the curves of one or more runs as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from stacx_core.tracking.curves import draw_curves, read_metrics


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", default="curves.png", show_default=True, help="PNG, SVG or PDF file to write.")
def plot(runs: tuple[str, ...], output: str) -> None:
    """Draw reward, held-out reward, loss and entropy of runs over their rollouts.

    RUN is the --output-dir of a run.
    """
    draw_curves({Path(run).name: read_metrics(Path(run)) for run in runs}, Path(output))
    click.echo(output)
