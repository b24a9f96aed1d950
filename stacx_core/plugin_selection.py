"""Which of the installed plugins may be loaded: the allow list and the disable list.

Each can come from flags, the environment and the `[plugins]` table of a run's TOML file:

    allow list     --plugins a,b          STACX_PLUGINS=a,b            enable = ["a", "b"]
    disable list   --disable-plugin a     STACX_DISABLE_PLUGINS=a,b    disable = ["a", "b"]

Of several allow lists the first in the order flag, environment, file holds; an empty one allows no plugin,
and without any every plugin is allowed. Disable lists add up; a disabled plugin stays off whoever allows it.
A name is that of a distribution or of its entry point; case, '-', '_' and '.' make no difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stacx_core.errors import ConfigError, nearest
from stacx_core.knobs import PLUGIN_VARIABLES

ENABLE_VARIABLE, DISABLE_VARIABLE, STRICT_VARIABLE = PLUGIN_VARIABLES


class Listed(NamedTuple):
    """A plugin name and the list that names it."""

    name: str
    origin: str


@dataclass(frozen=True)
class PluginSelection:
    """The resolved lists. `enable` is None when every plugin is allowed; `enable_origin` says who set it."""

    enable: tuple[Listed, ...] | None = None
    enable_origin: str = ""
    disable: tuple[Listed, ...] = ()

    @classmethod
    def gather(
        cls,
        enable: str | None = None,
        disable: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
        table: Mapping[str, Any] | None = None,
        file: str = "the configuration file",
    ) -> PluginSelection:
        """Combine the flags (`enable`, `disable`), the environment and the `[plugins]` table of `file`.

        Raises:
            ConfigError: the table has an unknown key or a value that is no list of names.
        """
        environ = os.environ if environ is None else environ
        table = _checked_table(table or {}, file)
        enable_lists = (
            ("--plugins", _split(enable)),
            (ENABLE_VARIABLE, _split(environ.get(ENABLE_VARIABLE))),
            (f"[plugins] enable of {file}", table.get("enable")),
        )
        disable_lists = (
            ("--disable-plugin", [name for text in disable for name in _split(text) or ()]),
            (DISABLE_VARIABLE, _split(environ.get(DISABLE_VARIABLE)) or ()),
            (f"[plugins] disable of {file}", table.get("disable", ())),
        )
        origin, names = next(((o, n) for o, n in enable_lists if n is not None), ("", None))
        return cls(
            enable=None if names is None else tuple(Listed(name, origin) for name in names),
            enable_origin=origin,
            disable=tuple(Listed(name, origin) for origin, names in disable_lists for name in names),
        )

    def check_known(self, known: Iterable[str]) -> None:
        """Raise `ConfigError` for a listed name that no installed plugin has."""
        known = sorted(set(known))
        normal = {normalise(name) for name in known}
        for name, origin in (*(self.enable or ()), *self.disable):
            if normalise(name) not in normal:
                raise ConfigError(
                    f"no installed plugin is named {name!r} ({origin}){nearest(name, known)}",
                    f"installed: {', '.join(known) or 'none'}",
                )

    def reason_off(self, *names: str) -> str:
        """Return why the plugin with these names may not be loaded, "" if it may."""
        normal = {normalise(name) for name in names}
        for listed in self.disable:
            if normalise(listed.name) in normal:
                return f"disabled by {listed.origin}"
        if self.enable is not None and not any(normalise(listed.name) in normal for listed in self.enable):
            return f"not in the list of {self.enable_origin}"
        return ""


def normalise(name: str) -> str:
    """Return the canonical form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def strict_plugins(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether STACX_STRICT_PLUGINS makes every unusable plugin an error.

    Raises:
        ConfigError: it is neither 0 nor 1.
    """
    value = (os.environ if environ is None else environ).get(STRICT_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"{STRICT_VARIABLE} must be 0 or 1, not {value!r}")
    return value == "1"


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _checked_table(table: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    for key, value in table.items():
        if key not in ("enable", "disable"):
            raise ConfigError(f"unknown key plugins.{key} in {file}{nearest(key, ('enable', 'disable'))}")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ConfigError(f"plugins.{key} in {file} is {value!r}; it must be a list of plugin names")
    return table
