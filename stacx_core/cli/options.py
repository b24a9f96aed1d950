"""What every command shares: the plugin lists given as flags, and the host loaded with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from stacx_core.errors import ExitCode
from stacx_core.knobs import PLUGIN_SECTION, ConfigFile
from stacx_core.plugin_selection import PluginSelection, strict_plugins
from stacx_core.plugins import PluginHost, load

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Session:
    """The options given before and after the command's name, kept as the context's object."""

    verbose: bool = False
    enable: str | None = None
    disable: list[str] = field(default_factory=list)
    config: str | None = None

    def selection(self, config: ConfigFile | None = None) -> PluginSelection:
        """Combine these flags, the environment and the `[plugins]` table of `config` (or of `--config`).

        Raises:
            ConfigError: the file or its table is malformed.
        """
        if config is None and self.config is not None:
            config = ConfigFile.load(self.config)
        return PluginSelection.gather(
            enable=self.enable,
            disable=self.disable,
            table=config.tables.get(PLUGIN_SECTION) if config else None,
            file=config.path if config else "",
        )


def plugin_options(command: Command) -> Command:
    """Add `--plugins` and `--disable-plugin`; they are kept in the `Session`, not passed to the command."""
    enable = click.option(
        "--plugins",
        metavar="A,B",
        expose_value=False,
        callback=_keep_enable,
        help="Load only these plugins; '' loads none. Also STACX_PLUGINS.",
    )
    disable = click.option(
        "--disable-plugin",
        metavar="NAME",
        multiple=True,
        expose_value=False,
        callback=_keep_disable,
        help="Do not load this plugin; may be repeated. Also STACX_DISABLE_PLUGINS.",
    )
    return enable(disable(command))


def config_option(command: Command) -> Command:
    """Add `--config`, of which a listing reads the `[plugins]` table only."""
    return click.option(
        "-c",
        "--config",
        metavar="FILE",
        expose_value=False,
        callback=_keep_config,
        help="TOML file of a run; its [plugins] table is applied.",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def load_leniently(ctx: click.Context) -> PluginHost:
    """Load the plugins for a report: unusable ones never stop it, not even in strict mode."""
    return load(ctx.ensure_object(Session).selection(), strict=False)


def finish_report(ctx: click.Context, host: PluginHost) -> None:
    """End a report; in strict mode unusable plugins make the command fail after it was printed."""
    if strict_plugins() and host.problems():
        ctx.exit(ExitCode.PLUGIN)


def _keep_enable(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).enable = value


def _keep_disable(ctx: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    ctx.ensure_object(Session).disable.extend(value)


def _keep_config(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.ensure_object(Session).config = value
