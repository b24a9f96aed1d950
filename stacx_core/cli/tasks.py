"""``stacx tasks``: list, check, try out and convert tasks for software-engineering agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from stacx_core.cli.output import print_json, print_table
from stacx_core.errors import ExitCode

_FOLDER = click.argument("folder", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_SANDBOX = click.option(
    "--sandbox",
    default="bubblewrap",
    show_default=True,
    help="Where tasks run: bubblewrap, docker or swerex:KIND.",
)


@click.group()
def tasks() -> None:
    """Tasks for software-engineering agents, in the Harbor format.

    FOLDER is a folder of task folders, or one task folder.
    """


@tasks.command("list")
@_FOLDER
@_JSON
def list_tasks(folder: Path, as_json: bool) -> None:
    """List the tasks of a folder with their limits."""
    from stacx_core.swe.tasks import read_tasks

    found = read_tasks(folder)
    if as_json:
        print_json([{"name": task.name, **vars(task.limits), "metadata": dict(task.metadata)} for task in found])
        return
    headers = ("task", "solution", "agent s", "verifier s", "cpus", "memory MiB", "storage MiB", "instruction")
    print_table(
        headers,
        [
            (
                task.name,
                "yes" if task.solution else "no",
                *(f"{seconds:g}" for seconds in (task.limits.agent_timeout, task.limits.verifier_timeout)),
                *map(str, (task.limits.cpus, task.limits.memory_mb, task.limits.storage_mb)),
                _short(task.instruction),
            )
            for task in found
        ],
    )


@tasks.command("check")
@_FOLDER
@_SANDBOX
def check_tasks(folder: Path, sandbox: str) -> None:
    """Check that every task of a folder is well-formed and possible in the sandbox; runs nothing."""
    from stacx_core.swe.sandboxes import sandbox_provider
    from stacx_core.swe.tasks import read_tasks

    found, provider = read_tasks(folder), sandbox_provider(sandbox)
    for task in found:
        provider.check(task)
    click.echo(f"{len(found)} tasks are well-formed")


@tasks.command("run-oracle")
@_FOLDER
@_SANDBOX
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Tasks tried at a time.")
@_JSON
def run_oracle(folder: Path, sandbox: str, jobs: int, as_json: bool) -> int:
    """Try out every task: its solution must earn a reward of 1, and doing nothing must not.

    Ends with exit code 1 if a task fails.
    """
    from stacx_core.swe.oracle import try_out
    from stacx_core.swe.sandboxes import sandbox_provider
    from stacx_core.swe.tasks import read_tasks

    found = read_tasks(folder)
    say: Callable[[str], None] = (lambda _: None) if as_json else click.echo
    trials = try_out(found, sandbox_provider(sandbox), jobs, lambda trial: say(str(trial)))
    failed = [trial for trial in trials if not trial.sound]
    if as_json:
        print_json([{**vars(trial), "sound": trial.sound} for trial in trials])
    else:
        click.echo(f"{len(trials) - len(failed)} of {len(trials)} tasks are sound")
    return ExitCode.RUN_FAILED if failed else ExitCode.OK


@tasks.command("convert")
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--image", default="python:3.12", show_default=True, help="Image of the Dockerfiles.")
@click.option(
    "--runner", type=click.Choice(("pytest", "unittest")), default="pytest", show_default=True, help="Runs the tests."
)
def convert_rows(rows: Path, out: Path, image: str, runner: str) -> None:
    """Make task folders of rows in the style of SWE-bench and SWE-Gym.

    ROWS is a JSONL file; repo names a local git repository or bundle. OUT gets one folder for each row.
    """
    from stacx_core.swe.tasks.converting import convert

    click.echo(f"{len(convert(rows, out, image, runner))} tasks in {out.as_posix()}")


def _short(text: str, width: int = 60) -> str:
    line = text.splitlines()[0].lstrip("# ")
    return line if len(line) <= width else line[: width - 3] + "..."
