"""Knobs as options of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from stacx_core.knobs import Knob


def knob_option(knob: Knob) -> click.Option:
    """The option of a knob; its value stays text, so that the knob itself checks it."""
    if knob.type is bool:
        return click.Option([f"{knob.flag}/--no-{knob.flag[2:]}"], default=None, help=knob.help)
    extra: dict[str, Any] = {} if knob.flag_value is None else {"is_flag": False, "flag_value": knob.flag_value}
    return click.Option([knob.flag], type=str, default=None, help=knob.help, metavar=_metavar(knob), **extra)


def given_values(knobs: Sequence[Knob], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of the options that were given.

    Raises:
        ConfigError: A knob refuses its value.
    """
    by_name = {knob.name: knob for knob in knobs}
    return {
        name: by_name[name].validate(value, by_name[name].flag)
        if isinstance(value, bool)
        else by_name[name].parse(value, by_name[name].flag)
        for name, value in flags.items()
        if value is not None
    }


def write_knobs(formatter: click.HelpFormatter, knobs: Sequence[Knob]) -> None:
    """List knobs under their sections."""
    for section in dict.fromkeys(knob.section for knob in knobs):
        with formatter.section(f"[{section}]"):
            formatter.write_dl([_help_row(knob) for knob in knobs if knob.section == section])


def _metavar(knob: Knob) -> str:
    return f"[{'|'.join(knob.choices)}]" if knob.choices else knob.type.__name__.upper()


def _help_row(knob: Knob) -> tuple[str, str]:
    left = f"{knob.flag}/--no-{knob.flag[2:]}" if knob.type is bool else f"{knob.flag} {_metavar(knob)}"
    default = "unset" if knob.default is None else str(knob.default).lower() if knob.type is bool else knob.default
    return left, f"{knob.help} [{knob.env}; default {default}]"
