"""The command group, and how errors leave the command: one line and hints, or one JSON document."""

from __future__ import annotations

import difflib
import importlib
import traceback
from typing import Any

import click

from stacx_core import __version__
from stacx_core.cli.options import Session, plugin_options
from stacx_core.cli.output import print_json
from stacx_core.errors import ExitCode, StacxError

COMMANDS = {
    "train": ("stacx_core.cli.train:train", "Train a model with a recipe."),
    "sample": ("stacx_core.cli.sample:sample", "Draw samples from a model and write them to a file."),
    "collect": ("stacx_core.cli.collect:collect", "Let a teacher play episodes and keep them as a corpus."),
    "tasks": ("stacx_core.cli.tasks:tasks", "List, check, try out and convert tasks for coding agents."),
    "eval": ("stacx_core.cli.evaluate:evaluate", "Let a model work on tasks and estimate pass@k."),
    "show-trajectory": ("stacx_core.cli.show_trajectory:show_trajectory", "Show an agent's episode."),
    "convert": (
        "stacx_core.cli.convert:convert",
        "Convert a model to a distributed checkpoint of Megatron-core, or back.",
    ),
    "plan": ("stacx_core.cli.plan:plan", "Predict memory, traffic and speed of a model laid out over GPUs."),
    "plot": ("stacx_core.cli.plot:plot", "Draw the curves of runs."),
    "list-recipes": ("stacx_core.cli.listing:list_recipes", "List the recipes of all plugins."),
    "show-recipe": ("stacx_core.cli.recipe_page:show_recipe", "Show everything about one recipe."),
    "check": ("stacx_core.cli.check:check", "Check that recipes keep what every recipe must."),
    "plugins": ("stacx_core.cli.listing:plugins", "List the installed plugins, also the broken ones."),
    "doctor": ("stacx_core.cli.doctor:doctor", "Check versions, extras, devices, threads and plugins."),
}
"""Command -> where it is defined, and its help in the list of commands."""


class LazyGroup(click.Group):
    """Imports the module of a command only when the command, or its own help, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the nearest one."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownName("command", args[0], list(COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


class UnknownName(click.UsageError):
    """A command or option that does not exist; `hint` names the nearest."""

    def __init__(self, kind: str, name: str, choices: list[str], ctx: click.Context | None) -> None:
        super().__init__(f"no {kind} is named {name!r}", ctx)
        close = difflib.get_close_matches(name, choices, n=1)
        self.hint = f"did you mean {close[0]!r}?" if close else ""


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 the run failed, 2 wrong usage or configuration, 3 a plugin is broken, off "
    "or in a clash, 4 a loss or weight is not finite, 130 interrupted.",
)
@click.version_option(__version__, message="stacx %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error.")
@plugin_options
@click.pass_context
def stacx(ctx: click.Context, verbose: bool) -> None:
    """Post-training whose algorithms are plugins.

    A disabled plugin stays off whatever allows it. Of several allow lists --plugins comes first, then
    STACX_PLUGINS, then [plugins] enable of the configuration file.
    """
    ctx.ensure_object(Session).verbose = verbose
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: list[str]) -> int:
    """Run the group; print an error, if there is one, and return the exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C, but for that of a training run, which saves.
    """
    session = Session()
    try:
        result = stacx.main(arguments, prog_name="stacx", standalone_mode=False, obj=session)
        return result if isinstance(result, int) else ExitCode.OK
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except (click.ClickException, StacxError) as error:
        if session.verbose:
            traceback.print_exc()
        return _report(error, as_json="--json" in arguments)


def _report(error: click.ClickException | StacxError, as_json: bool) -> int:
    message, hints, code = _describe(error)
    if as_json:
        kind = type(error).__name__ if isinstance(error, StacxError) else "UsageError"
        print_json({"error": {"type": kind, "message": message, "hints": hints, "exit_code": int(code)}})
    else:
        click.echo(f"error: {message}", err=True)
        for hint in hints:
            click.echo(f"  {hint}", err=True)
    return code


def _describe(error: click.ClickException | StacxError) -> tuple[str, list[str], int]:
    """Return the message, the hint lines and the exit code."""
    if isinstance(error, StacxError):
        return error.message, list(error.hints), error.exit_code
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption):
        error = UnknownName("option", error.option_name, _option_names(ctx), ctx)
    hints = [error.hint] if isinstance(error, UnknownName) and error.hint else []
    if ctx is not None:
        hints.append(f"see {ctx.command_path} --help")
    return error.format_message().rstrip("."), hints, ExitCode.USAGE


def _option_names(ctx: click.Context | None) -> list[str]:
    parameters: list[Any] = list(ctx.command.get_params(ctx)) if ctx else []
    return [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
