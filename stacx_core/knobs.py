"""Knobs: one typed declaration gives the flag, the environment variable, the config key and the docs row.

A knob's value is resolved once, on the driver, with the precedence flag, environment, config file, recipe default,
global default. Everything downstream reads the resolved :class:`Args` and never the environment.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.errors import ConfigError, nearest

ENVIRONMENT_PREFIX = "STACX_"
PLUGIN_VARIABLES = ("STACX_PLUGINS", "STACX_DISABLE_PLUGINS", "STACX_STRICT_PLUGINS")
PLUGIN_SECTION = "plugins"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Knob:
    """A typed setting, declared once by the package that uses it.

    Args:
        name: Python identifier in snake case; gives ``--flag``, ``STACX_NAME`` and the key in ``section``.
        type: ``bool``, ``int``, ``float`` or ``str``.
        default: Global default; ``None`` means unset.
        help: One sentence for ``--help`` and the reference page.
        section: TOML table and heading in ``--help``.
        choices: The only values a ``str`` knob takes; empty for any.
        minimum, maximum: Inclusive bounds of a number.
        exclusive_minimum: Exclusive lower bound of a number.
        check: Gets a value, returns what is wrong with it or ``None``.
        flag_value: What a bare ``--flag`` without a value stands for; ``None`` when a value is required.
    """

    name: str
    type: type
    default: Any
    help: str
    section: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    check: Callable[[Any], str | None] | None = None
    flag_value: str | None = None

    @property
    def flag(self) -> str:
        """The command-line spelling, ``--kl-loss-coef``."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The environment variable, ``STACX_KL_LOSS_COEF``."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def key(self) -> str:
        """The full path in a config file, ``grpo.kl_loss_coef``."""
        return f"{self.section}.{self.name}"

    def parse(self, text: str, where: str) -> Any:
        """Turn text from a flag or a variable into a checked value.

        Raises:
            ConfigError: The text is not of the knob's type, or the value is refused.
        """
        if self.type is bool:
            if text.lower() in _TRUE:
                return True
            if text.lower() in _FALSE:
                return False
            raise ConfigError(f"{where}: {text!r} is not a switch; use one of {', '.join(_TRUE + _FALSE)}")
        try:
            value = self.type(text)
        except ValueError:
            raise ConfigError(f"{where}: expected {self.type.__name__}, got {text!r}") from None
        return self.validate(value, where)

    def validate(self, value: Any, where: str) -> Any:
        """Check type, choices and bounds of a value; an int is taken for a float.

        Raises:
            ConfigError: The value is of another type, outside the bounds or not among the choices.
        """
        if self.type is float and type(value) is int:
            value = float(value)
        if type(value) is not self.type:
            hint = "; write the number without quotes" if isinstance(value, str) else ""
            raise ConfigError(f"{where}: expected {self.type.__name__}, got {type(value).__name__} {value!r}{hint}")
        problem = self._problem(value)
        if problem:
            raise ConfigError(f"{where}: {value!r} {problem}")
        return value

    def _problem(self, value: Any) -> str | None:
        if self.choices and value not in self.choices:
            return f"is not one of {', '.join(self.choices)}{nearest(str(value), self.choices)}"
        if self.type in (int, float):
            if isinstance(value, float) and not math.isfinite(value):
                return "is not a finite number"
            if self.minimum is not None and value < self.minimum:
                return f"is below the minimum {self.minimum:g}"
            if self.maximum is not None and value > self.maximum:
                return f"is above the maximum {self.maximum:g}"
            if self.exclusive_minimum is not None and value <= self.exclusive_minimum:
                return f"must be greater than {self.exclusive_minimum:g}"
        return self.check(value) if self.check else None


class Args:
    """Resolved values as read-only attributes, each with its origin.

    Reading a name that neither the host nor the recipe declares raises ``AttributeError``.
    """

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        object.__setattr__(self, "_values", dict(values))
        object.__setattr__(self, "_origins", dict(origins or {}))

    @classmethod
    def of(cls, **values: Any) -> Args:
        """Build arguments from keywords, for tests and scripts."""
        return cls(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            known = nearest(name, self._values)
            raise AttributeError(f"no knob {name!r} is declared by the host or this recipe{known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"arguments are read-only; use replace({name}=...)")

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Args) and self._values == other._values

    def __reduce__(self) -> tuple[Any, ...]:
        return (Args, (self._values, self._origins))

    def __repr__(self) -> str:
        return f"Args({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

    def get(self, name: str, default: Any = None) -> Any:
        """The value of ``name``, or ``default`` when it is not declared or unset."""
        value = self._values.get(name)
        return default if value is None else value

    def origin(self, name: str) -> str:
        """Where the value came from: flag, environment, config file, recipe default or default."""
        return str(self._origins.get(name, "default"))

    def is_default(self, name: str) -> bool:
        """Whether nobody but the recipe or the global default set the value."""
        return self.origin(name) in ("default", "recipe default")

    def replace(self, origin: str = "derived", **values: Any) -> Args:
        """A copy with some values changed."""
        origins = {**self._origins, **dict.fromkeys(values, origin)}
        return Args({**self._values, **values}, origins)

    def as_dict(self) -> dict[str, Any]:
        """A plain copy of all values."""
        return dict(self._values)


@dataclass(frozen=True)
class ConfigFile:
    """A parsed run config: TOML tables of knobs, and the ``[plugins]`` table."""

    path: str
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def load(cls, path: str | Path) -> ConfigFile:
        """Read a TOML file.

        Raises:
            ConfigError: The file is missing, is not TOML (a key set twice included), or has a key outside a table.
        """
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"config file {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path}: {error}") from error
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ConfigError(f"config file {path}: key {name!r} stands outside a table; write [section] first")
        return cls(str(path), tables)

    def values(self, knobs: Iterable[Knob], elsewhere: Mapping[str, str]) -> dict[str, Any]:
        """The checked value of every key.

        Args:
            knobs: The knobs of the host and the recipe.
            elsewhere: Keys of knobs of other recipes, with the recipes that have it, for the message.

        Raises:
            ConfigError: A section or a key is unknown, a key is of another recipe, or its value is refused.
        """
        by_key = {knob.key: knob for knob in knobs}
        sections = {key.partition(".")[0] for key in (*by_key, *elsewhere) if "." in key} | {PLUGIN_SECTION}
        found: dict[str, Any] = {}
        for section, table in self.tables.items():
            if section not in sections:
                known = nearest(section, sections) or f"; there are {', '.join(sorted(sections))}"
                raise ConfigError(f"config file {self.path}: unknown section [{section}]{known}")
            if section == PLUGIN_SECTION:
                continue
            for name, value in table.items():
                key = f"{section}.{name}"
                if key not in by_key:
                    raise ConfigError(self._unknown(key, name, by_key, elsewhere))
                found[name] = by_key[key].validate(value, f"config file {self.path}: {key}")
        return found

    def _unknown(self, key: str, name: str, by_key: Mapping[str, Knob], elsewhere: Mapping[str, str]) -> str:
        if key in elsewhere:
            return (
                f"config file {self.path}: {key} is a knob of {elsewhere[key]}, which this run does not use; remove it"
            )
        home = [k for k, knob in by_key.items() if knob.name == name]
        hint = f" (it belongs in [{by_key[home[0]].section}])" if home else nearest(key, by_key)
        return f"config file {self.path}: unknown key {key!r}{hint}"


def environment_values(
    knobs: Iterable[Knob], environment: Mapping[str, str], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """The checked value of every ``STACX_*`` variable.

    Args:
        knobs: The knobs of the host and the recipe.
        environment: The process environment.
        elsewhere: Variables of knobs of other recipes, with the recipes that have it, for the message.

    Raises:
        ConfigError: A variable is unknown, belongs to another recipe, or its value is refused.
    """
    by_env = {knob.env: knob for knob in knobs}
    found: dict[str, Any] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in PLUGIN_VARIABLES:
            continue
        if variable in by_env:
            found[by_env[variable].name] = by_env[variable].parse(text, f"environment variable {variable}")
        elif variable in elsewhere:
            raise ConfigError(
                f"environment variable {variable} is a knob of {elsewhere[variable]}, "
                "which this run does not use; unset it"
            )
        else:
            known = nearest(variable, [*by_env, *PLUGIN_VARIABLES])
            raise ConfigError(f"unknown environment variable {variable}{known}")
    return found


def resolve(
    knobs: Iterable[Knob],
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, Any],
    config: Mapping[str, Any],
    config_path: str = "",
    recipe_defaults: Mapping[str, Any],
) -> Args:
    """Merge the five sources by precedence: flag, environment, config file, recipe default, global default."""
    sources = (
        ("flag", flags),
        ("environment", environment),
        (f"config file {config_path}", config),
        ("recipe default", recipe_defaults),
    )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for knob in knobs:
        origin, source = next(((o, s) for o, s in sources if knob.name in s), ("default", {knob.name: knob.default}))
        values[knob.name], origins[knob.name] = source[knob.name], origin
    return Args(values, origins)


def render_config(knobs: Iterable[Knob], args: Args) -> str:
    """The resolved configuration as TOML that can be loaded again, with the origin of each value as a comment."""
    lines: list[str] = []
    section = ""
    for knob in sorted(knobs, key=lambda k: k.section):
        if knob.section != section:
            section = knob.section
            lines += ["", f"[{section}]"]
        value = getattr(args, knob.name)
        if value is None:
            lines.append(f"# {knob.name} is unset")
        else:
            lines.append(f"{knob.name} = {json.dumps(value, ensure_ascii=False)}  # {args.origin(knob.name)}")
    return "\n".join(lines).lstrip() + "\n"
