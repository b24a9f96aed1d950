"""Loading one plugin: import, API check, hooks and recipes, and what to say when any of it fails."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pluggy

from stacx_core import hookspecs
from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.errors import PluginError, RecipeError, StacxError, nearest
from stacx_core.plugin_discovery import PluginRecord


class IncompatiblePlugin(PluginError):
    """A plugin made for another version of the plugin API."""


def plugin_manager() -> pluggy.PluginManager:
    """Return a manager that knows the hookspecs and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def import_plugin(record: PluginRecord) -> Any:
    """Import what the entry point names, after the check that its module was made for this API."""
    module = importlib.import_module(record.module)
    api = getattr(module, "STACX_API", hookspecs.API_VERSION)
    if api != hookspecs.API_VERSION:
        raise IncompatiblePlugin(f"needs plugin API {api!r}, this stacx-core has {hookspecs.API_VERSION}")
    return resolve_object(record.target) if ":" in record.target else module


def register_hooks(trial: pluggy.PluginManager, plugin: Any, record: PluginRecord) -> None:
    """Register with a fresh manager; raise if a hook's name or one of its arguments is no hookspec's."""
    try:
        trial.register(plugin, name=record.key)
    except pluggy.PluginValidationError as error:
        raise PluginError(_with_signature(str(error))) from error
    names = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
    for caller in trial.get_hookcallers(plugin) or ():
        if not caller.has_spec() and not all(impl.optionalhook for impl in caller.get_hookimpls()):
            close = nearest(caller.name, names)
            raise PluginError(f"unknown hook {caller.name!r}{close}; the hooks are {', '.join(names)}")


def _with_signature(message: str) -> str:
    """Add the right signature to pluggy's report of a wrong argument."""
    hook = re.search(r"for hook '(\w+)'", message)
    spec = getattr(hookspecs, hook[1], None) if hook else None
    lines = message.splitlines()
    if hook and spec:
        lines.append(f"the hook is {hook[1]}({', '.join(inspect.signature(spec).parameters)})")
    return "; ".join(lines)


def checked_recipes(handed: Any) -> list[TrainingConfig]:
    """Return the recipes `register_recipes` handed over; raise `RecipeError` if that is not what they are."""
    configs = list(handed) if isinstance(handed, Iterable) else [handed]
    for config in configs:
        if not isinstance(config, TrainingConfig):
            raise RecipeError(f"register_recipes() returned {config!r}; it must return TrainingConfig objects")
    for name, count in Counter(config.name for config in configs).items():
        if count > 1:
            raise RecipeError(f"register_recipes() returned {count} recipes named {name!r}; make it one")
    return configs


def failure_reason(error: BaseException, record: PluginRecord) -> str:
    """Say in one line why a plugin could not be loaded, and where."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{record.module}.".startswith(f"{missing}."):
        return (
            f"module {record.module!r} is not installed: left over from an uninstalled package? "
            f"Run pip uninstall {record.distribution}, or delete its metadata"
        )
    if isinstance(error, StacxError):
        text = "; ".join((error.message, *error.hints))
    else:
        text = " ".join("".join(traceback.format_exception_only(error)).split())
    host = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((host, "<frozen", importlib.__file__))]
    return f"{text} ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else text
