"""The plugin host: loads plugins one by one, keeps their failures apart, and knows who provides what.

A plugin is a distribution with an entry point in the group `stacx.recipes` that names a module. Importing
that module registers its recipes; functions in it marked with `hookimpl` become its hooks. A plugin that
fails in any way, at import or at registration, is recorded with the reason and contributes nothing, and the
others go on.
"""

from __future__ import annotations

import difflib
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Literal

import pluggy

from stacx_core import __version__
from stacx_core.config import TrainingConfig
from stacx_core.errors import PluginError, RecipeError, StacxError, UnknownRecipeError
from stacx_core.plugin_discovery import FIRST_PARTY, PluginRecord, declared_recipes, discover
from stacx_core.plugin_loading import (
    IncompatiblePlugin,
    checked_recipes,
    failure_reason,
    import_plugin,
    plugin_manager,
    register_hooks,
)
from stacx_core.plugin_selection import STRICT_VARIABLE, PluginSelection, normalise, strict_plugins
from stacx_core.recipes import REGISTRY, Registration

HOST = PluginRecord("host", "stacx-core", __version__, "stacx_core.host_plugin")
UNUSABLE = ("failed", "incompatible", "conflict")


@dataclass(frozen=True)
class ProvidedRecipe:
    """A usable recipe and its provider.

    Args:
        config: the recipe.
        plugin: the plugin that brought it; for the user's own code, a record named after the module.
        status: "conflict" when another provider has a recipe of that name, else "loaded".
    """

    config: TrainingConfig
    plugin: PluginRecord
    status: Literal["loaded", "conflict"]

    @property
    def qualified(self) -> str:
        """The name with its distribution, unique in every environment."""
        return f"{self.plugin.distribution}:{self.config.name}"

    @property
    def key(self) -> str:
        """What to ask for: the bare name unless it is claimed twice."""
        return self.config.name if self.status == "loaded" else self.qualified


class PluginHost:
    """The plugins of this process. `load` imports them; `find`, `recipes`, `records` and `hook` then tell."""

    def __init__(self, selection: PluginSelection, discovered: Iterable[PluginRecord] | None = None) -> None:
        self._records = [HOST, *(discover() if discovered is None else discovered)]
        selection.check_known(name for r in self._records[1:] for name in (r.distribution, r.name))
        self._selection = selection
        self._errors: dict[str, BaseException] = {}
        self._manager = plugin_manager()

    @property
    def hook(self) -> pluggy.HookRelay:
        """The hooks of the host and of all usable plugins, to be called with keyword arguments."""
        return self._manager.hook

    @property
    def recipes(self) -> tuple[ProvidedRecipe, ...]:
        """Every usable recipe, sorted by name and provider; one per provider where a name clashes."""
        usable: dict[tuple[str, str], tuple[TrainingConfig, PluginRecord]] = {}
        for registration in REGISTRY.registrations:
            owner = self._owner(registration)
            if owner.status == "loaded":
                usable.setdefault((registration.config.name, owner.key), (registration.config, owner))
        claims = Counter(name for name, _ in usable)
        return tuple(
            ProvidedRecipe(config, owner, "conflict" if claims[config.name] > 1 else "loaded")
            for _, (config, owner) in sorted(usable.items(), key=lambda item: item[0])
        )

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin, the host's own first."""
        recipes = self.recipes
        return tuple(_with_recipes(record, recipes) for record in self._records)

    def load(self) -> None:
        """Import every plugin the selection allows. Only an interrupt by the user gets out of here."""
        for index, record in enumerate(self._records):
            off = self._selection.reason_off(record.distribution, record.name) if record is not HOST else ""
            if off:
                self._records[index] = replace(record, status="disabled", reason=off)
            elif record.status == "available":
                self._records[index] = self._load_one(record)
        # Of implementations that ask to be last, the one registered last is: that must be the host's.
        self._manager.register(self._manager.unregister(name=HOST.key), name=HOST.key)

    def find(self, name: str) -> ProvidedRecipe:
        """Return the recipe called `name`, which may be qualified as `distribution:name`.

        Raises:
            UnknownRecipeError: nobody provides it.
            PluginError: its plugin is broken or switched off, or two plugins claim the bare name.
        """
        distribution, _, bare = name.rpartition(":")
        offers = [recipe for recipe in self.recipes if recipe.config.name == bare]
        if distribution:
            wanted = normalise(distribution)
            offers = [offer for offer in offers if normalise(offer.plugin.distribution) == wanted]
        if len(offers) == 1:
            return offers[0]
        raise self._clash(bare, offers) if offers else self._missing(name)

    def problems(self) -> list[PluginRecord]:
        """Return the plugins that failed, were made for another API, or clash."""
        return [record for record in self.records if record.status in UNUSABLE]

    def require_sound(self) -> None:
        """Raise `PluginError` if any plugin failed, was made for another API, or clashes."""
        problems = self.problems()
        if problems:
            lines = [f"{record.label}: {record.status}: {record.reason}" for record in problems]
            raise PluginError(f"{STRICT_VARIABLE}=1 and not every plugin is usable", *lines)

    def _load_one(self, record: PluginRecord) -> PluginRecord:
        start = time.perf_counter()
        try:
            with REGISTRY.credit(record.key), redirect_stdout(sys.stderr):
                hooks = self._register(record)
            return replace(record, status="loaded", hooks=hooks, import_seconds=time.perf_counter() - start)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._errors[record.key] = error
            return replace(
                record,
                status="incompatible" if isinstance(error, IncompatiblePlugin) else "failed",
                reason=failure_reason(error, record),
                import_seconds=time.perf_counter() - start,
            )

    def _register(self, record: PluginRecord) -> tuple[str, ...]:
        """Import the plugin and register its recipes and hooks; return the names of the hooks.

        A manager of its own tries everything first, so that the shared one never sees half a plugin.
        """
        plugin = import_plugin(record)
        trial = plugin_manager()
        register_hooks(trial, plugin, record)
        for handed in trial.hook.register_recipes():
            for config in checked_recipes(handed):
                REGISTRY.add(config, record.module, f"register_recipes() of {record.module}")
        self._check_unique(record)
        self._manager.register(plugin, name=record.key)
        return tuple(sorted(caller.name for caller in trial.get_hookcallers(plugin) or ()))

    def _check_unique(self, record: PluginRecord) -> None:
        seen: dict[str, Registration] = {}
        for new in REGISTRY.registrations:
            if self._owner(new).key == record.key:
                old = seen.setdefault(new.config.name, new)
                if old.config != new.config:
                    raise RecipeError(
                        f"recipe {new.config.name!r} is registered twice: by {old.module} ({old.source}) "
                        f"and {new.module} ({new.source}); give one of them another name"
                    )

    def _owner(self, registration: Registration) -> PluginRecord:
        """Return the plugin a recipe belongs to: by the name of its module, else by who was being loaded.

        Code outside every plugin, such as the user's own script, is a provider of its own.
        """
        shared = [_shared_prefix(record.module, registration.module) for record in self._records]
        best = max(shared)
        owners = [r for r, length in zip(self._records, shared, strict=True) if best and length == best]
        credited = [r for r in owners or self._records if r.key == registration.loading]
        if credited or owners:
            return (credited or owners)[0]
        return PluginRecord("local", registration.module, "", registration.module, "loaded")

    def _clash(self, name: str, offers: list[ProvidedRecipe]) -> PluginError:
        both = " and ".join(offer.plugin.label for offer in offers)
        qualified = " or ".join(offer.qualified for offer in offers)
        return PluginError(
            f"recipe {name!r} is provided by {both}; neither is used",
            f"ask for {qualified}",
            f"or switch one off: --disable-plugin {offers[-1].plugin.distribution}",
        )

    def _missing(self, name: str) -> StacxError:
        distribution, _, bare = name.rpartition(":")
        wanted = normalise(distribution)
        unusable = [record for record in self._records if record.status != "loaded"]
        for record in unusable:
            named = wanted in ("", normalise(record.distribution))
            if named and (wanted or bare in declared_recipes(record)):
                error = PluginError(
                    f"recipe {name!r} is not usable: {record.label} is {record.status}: {record.reason}",
                    "stacx plugins -v shows every plugin",
                )
                error.__cause__ = self._errors.get(record.key)
                return error
        return self._unknown(name, unusable)

    def _unknown(self, name: str, unusable: list[PluginRecord]) -> UnknownRecipeError:
        keys = [recipe.key for recipe in self.recipes]
        closest = ", ".join(difflib.get_close_matches(name, keys, n=3, cutoff=0.0))
        package, _, bare = name.rpartition(":")
        hints = [f"pip install {package}"] if package else []
        hints = hints or [f"pip install {d}" for d, names in FIRST_PARTY.items() if bare in names]
        hints.append("stacx list-recipes shows every recipe")
        if unusable:
            plugins = ", ".join(f"{record.label} ({record.status})" for record in unusable)
            hints.append(f"not loaded: {plugins}; see stacx plugins -v")
        return UnknownRecipeError(f"no recipe is named {name!r}; the closest are: {closest}", *hints)


_current: PluginHost | None = None


def load(selection: PluginSelection | None = None, strict: bool | None = None) -> PluginHost:
    """Load the plugins of this process and return their host, which `plugin_host()` returns from then on.

    Args:
        selection: what may be loaded; None means what the environment says.
        strict: raise for any unusable plugin; None means what STACX_STRICT_PLUGINS says.

    Raises:
        ConfigError: a list names a plugin that is not installed.
        PluginError: a plugin is unusable, under `strict`.
    """
    global _current
    previous, _current = _current, PluginHost(PluginSelection.gather() if selection is None else selection)
    try:
        _current.load()
        if strict_plugins() if strict is None else strict:
            _current.require_sound()
    except BaseException:
        _current = previous
        raise
    return _current


def plugin_host() -> PluginHost:
    """Return the host of this process, loading the plugins on the first call."""
    return load() if _current is None else _current


def _with_recipes(record: PluginRecord, recipes: tuple[ProvidedRecipe, ...]) -> PluginRecord:
    """Fill in what the plugin provides, and whether any of it clashes."""
    own = [recipe for recipe in recipes if recipe.plugin.key == record.key]
    if record.status != "loaded":
        return record
    record = replace(record, recipes=tuple(recipe.config.name for recipe in own))
    clashes = []
    for recipe in own:
        rivals = [r.plugin.label for r in recipes if r.config.name == recipe.config.name and r is not recipe]
        if rivals:
            clashes.append(f"recipe {recipe.config.name!r} is also provided by {' and '.join(rivals)}")
    return replace(record, status="conflict", reason="; ".join(clashes)) if clashes else record


def _shared_prefix(left: str, right: str) -> int:
    """Count the leading dotted parts two module names share."""
    length = 0
    for a, b in zip(left.split("."), right.split("."), strict=False):
        if a != b:
            break
        length += 1
    return length
