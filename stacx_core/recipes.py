"""The registry of recipes: how one is added, looked up, and chosen from the arguments of a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stacx_core.config import TrainingConfig
from stacx_core.errors import ConfigError, PluginError, RecipeError
from stacx_core.knobs import Args

logger = logging.getLogger(__name__)

RecipeFunction = TypeVar("RecipeFunction", bound=Callable[[], TrainingConfig])

ESTIMATOR_RECIPES: Mapping[str, str] = {
    "grpo": "grpo",
    "gspo": "gspo",
    "cispo": "cispo",
    "rloo": "rloo",
    "dapo": "dapo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "ppo": "ppo",
    "on_policy_distillation": "opd",
}
"""`--advantage-estimator` -> the recipe it stands for when `--algorithm` is not given."""


@dataclass(frozen=True)
class Registration:
    """A recipe and where it came from.

    Args:
        config: the recipe.
        module: the module whose code registered it.
        source: file and line of the function that built it.
        loading: key of the plugin that was being loaded at that moment, None outside the loader.
    """

    config: TrainingConfig
    module: str
    source: str
    loading: str | None


class Registry:
    """Every recipe built in this process, also those of plugins that later turned out to be broken."""

    def __init__(self) -> None:
        self.registrations: list[Registration] = []
        self._loading: str | None = None

    def add(self, config: TrainingConfig, module: str, source: str) -> None:
        """Record a recipe; the same code run again replaces what it registered before.

        Raises:
            RecipeError: other code of the same module registered a recipe of that name.
        """
        new = Registration(config, module, source, self._loading)
        for index, old in enumerate(self.registrations):
            if (old.module, old.config.name) == (module, config.name):
                if _same_file_other_line(old.source, source):
                    raise RecipeError(
                        f"recipe {config.name!r} is registered twice by {module}: {old.source} and {source}",
                        "give one of them another name",
                    )
                self.registrations[index] = new
                return
        self.registrations.append(new)

    @contextmanager
    def credit(self, plugin: str) -> Iterator[None]:
        """Note `plugin` on what is registered meanwhile, for modules whose names tell nothing."""
        outer, self._loading = self._loading, plugin
        try:
            yield
        finally:
            self._loading = outer


REGISTRY = Registry()


def recipe(name: str) -> Callable[[RecipeFunction], RecipeFunction]:
    """Build the decorated function's `TrainingConfig` now and register it under `name`.

    Raises:
        RecipeError: the function returns no `TrainingConfig`, one of another name, or a malformed one; or
            other code of this module already registered a recipe of that name.
    """

    def register(function: RecipeFunction) -> RecipeFunction:
        config = function()
        if not isinstance(config, TrainingConfig):
            raise RecipeError(f"recipe {name!r}: its function returned {config!r}, not a TrainingConfig")
        if config.name != name:
            raise RecipeError(f"recipe {name!r}: name is {config.name!r}; it must equal the name in @recipe")
        code = inspect.unwrap(function).__code__
        REGISTRY.add(config, function.__module__, f"{code.co_filename}:{code.co_firstlineno}")
        return function

    return register


class RecipeView(Mapping[str, TrainingConfig]):
    """The usable recipes by name, read-only; plugins are loaded on first use.

    Recipes whose name two plugins claim appear under `distribution:name` only. Asking for what is not there
    raises `UnknownRecipeError`, or `PluginError` when a broken plugin or a clash stands in the way.
    """

    def __getitem__(self, name: str) -> TrainingConfig:
        from stacx_core.plugins import plugin_host

        return plugin_host().find(name).config

    def __iter__(self) -> Iterator[str]:
        from stacx_core.plugins import plugin_host

        return iter([provided.key for provided in plugin_host().recipes])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self[name])
        except (KeyError, PluginError):
            return False

    def __repr__(self) -> str:
        return f"TRAINING_CONFIGS({', '.join(self)})"


TRAINING_CONFIGS: Mapping[str, TrainingConfig] = RecipeView()


def infer_algorithm(args: Any) -> str:
    """Return the recipe a run asks for.

    `args.algorithm` wins as it stands. Without it, `loss_type == "sft_loss"` means `sft`, `use_critic` means
    `ppo`, and `advantage_estimator` means the recipe in `ESTIMATOR_RECIPES`. Attributes may be missing.

    Raises:
        UnknownRecipeError: `args.algorithm` is no recipe.
        PluginError: its plugin is broken or switched off, or two plugins claim its name.
        ConfigError: nothing in `args` names a recipe.
    """
    algorithm = getattr(args, "algorithm", None)
    estimator: str | None = getattr(args, "advantage_estimator", None)
    if algorithm is not None:
        TRAINING_CONFIGS[algorithm]
        contradicts = ESTIMATOR_RECIPES.get(estimator or "") != algorithm.rpartition(":")[2]
        if estimator is not None and contradicts and not _is_default(args, "advantage_estimator"):
            logger.warning("estimator %r contradicts algorithm %r; the algorithm wins", estimator, algorithm)
        return str(algorithm)
    if getattr(args, "loss_type", None) == "sft_loss":
        logger.info("no algorithm given: loss type 'sft_loss' means recipe 'sft'")
        return "sft"
    if getattr(args, "use_critic", None):
        return "ppo"
    if estimator is not None and estimator in ESTIMATOR_RECIPES:
        return ESTIMATOR_RECIPES[estimator]
    known = ", ".join(f"{key} -> {value}" for key, value in ESTIMATOR_RECIPES.items())
    asked = f"advantage estimator {estimator!r} is no recipe's" if estimator else "no algorithm is given"
    raise ConfigError(
        f"{asked}: pass --algorithm NAME, or an advantage estimator from the map {known}",
        "stacx list-recipes shows every recipe",
    )


def _is_default(args: Any, name: str) -> bool:
    """Whether `args` knows that nobody set `name`; a plain namespace does not know."""
    return isinstance(args, Args) and args.is_default(name)


def _same_file_other_line(old: str, new: str) -> bool:
    return old != new and old.rpartition(":")[0] == new.rpartition(":")[0]
