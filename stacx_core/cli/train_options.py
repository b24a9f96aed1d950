"""The options of ``stacx train``: the host's knobs and those of the recipe that the command line chooses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from stacx_core.cli.knob_options import knob_option, write_knobs
from stacx_core.cli.options import Session
from stacx_core.errors import ConfigError, nearest
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args, ConfigFile, Knob
from stacx_core.plugins import load
from stacx_core.recipes import TRAINING_CONFIGS, infer_algorithm

_SELECTORS = ("algorithm", "advantage_estimator", "use_critic", "loss_type")


class TrainCommand(click.Command):
    """Learns its options from the recipe before it parses them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Choose the recipe from the raw arguments, then parse them with its knobs."""
        asks_help = any(arg in ("--help", "-h") for arg in args)
        file = None if asks_help and not flag_text(args, "--config", "-c") else config_file(args)
        ctx.meta["config_file"] = file
        _load_plugins(ctx, args, file)
        selection = parse_selection(args, file)
        if asks_help and selection.algorithm is None:
            ctx.meta["knobs"] = HOST_KNOBS
        else:
            recipe = TRAINING_CONFIGS[infer_algorithm(selection)]
            ctx.meta["recipe"] = recipe
            ctx.meta["knobs"] = recipe.offered_knobs
            ctx.meta["elsewhere"] = _knobs_elsewhere(recipe.name)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise ConfigError(self._unknown(ctx, error.option_name)) from error

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The declared options and one for every knob."""
        return [*super().get_params(ctx), *(knob_option(knob) for knob in ctx.meta.get("knobs", ()))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the knobs under their sections."""
        own = [p.get_help_record(ctx) for p in super().get_params(ctx) if isinstance(p, click.Option)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in own if record])
        knobs: Sequence[Knob] = ctx.meta["knobs"]
        write_knobs(formatter, knobs)

    def _unknown(self, ctx: click.Context, option: str) -> str:
        flags = [flag for param in self.get_params(ctx) for flag in param.opts]
        recipe = ctx.meta["recipe"].name
        if option in ctx.meta["elsewhere"]:
            return f"{option} is a knob of {ctx.meta['elsewhere'][option]}, which this run of {recipe!r} does not use"
        return f"no option {option} for recipe {recipe!r}{nearest(option, flags)}"


def config_file(args: Sequence[str]) -> ConfigFile | None:
    """The config file named on the command line, loaded."""
    path = flag_text(args, "--config", "-c")
    return ConfigFile.load(path) if path else None


def _load_plugins(ctx: click.Context, args: Sequence[str], file: ConfigFile | None) -> None:
    """Load the plugins that flags, environment and config file allow, before their knobs become options."""
    session = ctx.ensure_object(Session)
    enable = flag_text(args, "--plugins")
    session.enable = session.enable if enable is None else enable
    session.disable += flag_texts(args, "--disable-plugin")
    load(session.selection(file))


def chosen_config_file() -> ConfigFile | None:
    """The config file of the command being run."""
    file: ConfigFile | None = click.get_current_context().meta["config_file"]
    return file


def flag_texts(args: Sequence[str], *names: str) -> list[str]:
    """Every value given to a flag in raw arguments, before they are parsed."""
    found = []
    for position, arg in enumerate(args):
        name, has_value, value = arg.partition("=")
        attached = [arg[len(n) :] for n in names if not n.startswith("--") and arg.startswith(n) and arg != n]
        if attached:
            found += [attached[0].removeprefix("=")]
        elif name in names:
            found += [value] if has_value else list(args[position + 1 : position + 2])
    return found


def flag_text(args: Sequence[str], *names: str) -> str | None:
    """The last of them."""
    return next(reversed(flag_texts(args, *names)), None)


def parse_selection(args: Sequence[str], file: ConfigFile | None) -> Args:
    """The knobs that choose the recipe, resolved from raw arguments, the environment and the config file."""
    stored = {k: v for table in (file.tables.values() if file else ()) for k, v in table.items()}
    values: dict[str, Any] = {}
    for knob in HOST_KNOBS:
        if knob.name not in _SELECTORS:
            continue
        text = "true" if knob.type is bool and knob.flag in args else flag_text(args, knob.flag)
        if knob.type is bool and f"--no-{knob.flag[2:]}" in args:
            text = "false"
        where = knob.flag
        if text is None and knob.env in os.environ:
            text, where = os.environ[knob.env], knob.env
        if text is not None:
            values[knob.name] = knob.parse(text, where)
        elif file and knob.name in stored:
            values[knob.name] = knob.validate(stored[knob.name], f"config file {file.path}: {knob.key}")
        else:
            values[knob.name] = knob.default
    if values["algorithm"] is not None and values["advantage_estimator"] == "grpo":
        values["advantage_estimator"] = None
    return Args(values)


def _knobs_elsewhere(recipe: str) -> dict[str, str]:
    """Flag, environment variable and config key -> the recipes, in words, for the knobs of all other recipes."""
    owners: dict[str, list[str]] = {}
    mine = {knob.name for knob in TRAINING_CONFIGS[recipe].offered_knobs}
    for name, config in TRAINING_CONFIGS.items():
        for knob in (*config.modality.knobs, *config.knobs):
            for spelling in (knob.flag, knob.env, knob.key) if knob.name not in mine else ():
                owners.setdefault(spelling, []).append(name)
    elsewhere = {spelling: in_words(names) for spelling, names in owners.items()}
    unused = [knob for knob in HOST_KNOBS if knob.name not in mine]
    return elsewhere | {s: "recipes of language models" for knob in unused for s in (knob.flag, knob.env, knob.key)}


def in_words(recipes: Sequence[str]) -> str:
    """``recipe 'a'``, or ``recipes 'a', 'b'``."""
    return f"recipe{'s' if len(recipes) > 1 else ''} {', '.join(map(repr, recipes))}"
