"""What the driver resolved, on its way to the processes, which refuse it where their installation differs."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ray import cloudpickle

from stacx_core.config import FrozenMapping, TrainingConfig
from stacx_core.errors import PluginError
from stacx_core.knobs import Args
from stacx_core.plugin_discovery import discover
from stacx_core.plugin_selection import Listed, PluginSelection, normalise
from stacx_core.plugins import HOST, load, plugin_host

DRIVER = "the driver's plugins"


@dataclass(frozen=True)
class Parcel:
    """A run as the driver resolved it.

    Attributes:
        versions: Of stacx-core and of each distribution whose plugin the driver loaded.
        plugins: Names of these distributions.
        qualified: Who provides the recipe, or "" for the user's own code.
        fingerprint: Of the recipe.
        contents: The recipe and the arguments, pickled.
        path: Where the driver imports from.
    """

    versions: dict[str, str]
    plugins: tuple[str, ...]
    qualified: str
    fingerprint: str
    contents: bytes
    path: tuple[str, ...]

    @classmethod
    def of(cls, config: TrainingConfig, args: Args) -> Parcel:
        """The parcel of a run."""
        loaded = [record for record in plugin_host().records[1:] if record.status in ("loaded", "conflict")]
        providers = [
            recipe.qualified
            for recipe in plugin_host().recipes
            if recipe.config == config and recipe.plugin.distribution != "local"
        ]
        return cls(
            versions={record.distribution: record.version for record in (HOST, *loaded)},
            plugins=tuple(record.distribution for record in loaded),
            qualified=next(iter(providers), ""),
            fingerprint=fingerprint(config),
            contents=cloudpickle.dumps((config, args)),
            path=tuple(sys.path),
        )

    def open(self) -> tuple[TrainingConfig, Args]:
        """The recipe and the arguments, in a process that has what the driver has.

        Raises:
            PluginError: A version or the recipe differs, or a plugin is missing or cannot be loaded here.
        """
        sys.path.extend(path for path in self.path if path not in sys.path)
        own = {normalise(record.distribution): record.version for record in (HOST, *discover())}
        for name, version in self.versions.items():
            found = own.get(normalise(name))
            if found != version:
                raise PluginError(
                    f"{name} is {f'version {found}' if found else 'not installed'} here, and {version} on the driver",
                    "install the same versions on every node",
                )
        host = load(PluginSelection(tuple(Listed(name, DRIVER) for name in self.plugins), DRIVER))
        broken = [record for record in host.records if record.status not in ("loaded", "conflict", "disabled")]
        for record in broken:
            raise PluginError(f"{record.label} is {record.status} here: {record.reason}")
        if self.qualified:
            self._compare(host.find(self.qualified).config)
        config, args = cloudpickle.loads(self.contents)
        return config, args

    def _compare(self, own: TrainingConfig) -> None:
        if fingerprint(own) != self.fingerprint:
            raise PluginError(
                f"recipe {self.qualified!r} differs from the driver's, though the versions are the same",
                "install the same code on every node",
            )


def fingerprint(config: TrainingConfig) -> str:
    """A digest of everything that a recipe says; functions and classes count by their name."""
    return hashlib.sha256(_text(config).encode()).hexdigest()


def _text(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return "(" + ",".join(f"{f.name}={_text(getattr(value, f.name))}" for f in fields(value)) + ")"
    if isinstance(value, (dict, FrozenMapping)):
        return "{" + ",".join(f"{key!r}:{_text(value[key])}" for key in sorted(value, key=repr)) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, type) or callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
