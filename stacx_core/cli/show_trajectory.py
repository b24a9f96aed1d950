"""``stacx show-trajectory``: episodes for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from stacx_core.cli.output import print_table
from stacx_core.errors import ConfigError


@click.command("show-trajectory")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--index", type=int, help="Which episode, from 0, or from the end with -1.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page instead.")
@click.option("--full", is_flag=True, help="Show long outputs whole on the terminal.")
@click.option("--tokenizer", metavar="FOLDER", help="Tokenizer of a corpus: its --hf-checkpoint.")
def show_trajectory(file: Path, index: int | None, html: Path | None, full: bool, tokenizer: str | None) -> None:
    """Show what an agent did, turn by turn, with rewards, outcomes, who acted and what is trained on.

    FILE is the episodes.jsonl of `stacx eval`, or a shard of a corpus of `stacx collect`. Without --index a file with
    several episodes is listed, and a page has all of them.
    """
    from stacx_core.swe.evaluation.page import trajectories_page
    from stacx_core.swe.evaluation.reading import read_trajectories

    found = list(enumerate(read_trajectories(file, None if tokenizer is None else _decoder(tokenizer))))
    if index is not None:
        if not -len(found) <= index < len(found):
            raise ConfigError(f"--index {index}: {file} has {len(found)} episodes, 0 to {len(found) - 1}")
        found = [found[index]]
    if html is not None:
        html.write_text(trajectories_page(file.as_posix(), found), encoding="utf-8")
        click.echo(html.as_posix())
    elif len(found) == 1:
        from rich.console import Console

        from stacx_core.swe.evaluation.terminal import print_trajectory

        print_trajectory(found[0][1], Console(highlight=False, markup=False), full)
    else:
        headers = ("index", "task", "sample", "verdict", "reward", "turns")
        rows = [
            (str(number), t.task, str(t.sample), t.verdict, f"{t.reward:g}", str(len(t.actions))) for number, t in found
        ]
        print_table(headers, rows)


def _decoder(folder: str) -> Callable[[Sequence[int]], str]:
    from stacx_core.backends.model import load_tokenizer

    tokenizer = load_tokenizer(folder)
    return lambda ids: str(tokenizer.decode(list(ids)))
