"""What can be said about a recipe before any batch is seen."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

from stacx_core.config import PARALLELISMS, TrainingConfig, resolve_object
from stacx_core.errors import ConfigError, StacxError
from stacx_core.specialization.base import Specialization
from stacx_core.testing.results import CHECKS, Wrong, check
from stacx_core.testing.trial import Trial
from stacx_core.testing.variants import explore
from stacx_core.trainer.parallelism import check_supported


@check("recipe", applies_to_failing=True)
def default_arguments(trial: Trial) -> None:
    """The recipe accepts its own defaults, once what it requires is given, and refuses others by a `ConfigError` alone.

    Finds: presets that `check_args` refuses, knobs that must be given and are not in `requires`, a `check_args` that
    crashes or exits.
    """
    _, crashes = explore(trial.subject.config)
    if crashes:
        raise Wrong(str(crashes[0]))


@check("recipe", applies_to_failing=True)
def structure(trial: Trial) -> None:
    """Every object reference of the recipe resolves, each role's specialization can be built, and it waives only what
    can be waived.

    Finds: misspelt references, classes that are no specializations, constructors that want more than arguments,
    misspelt checks in `waives`.
    """
    config = trial.subject.config
    for role in config.roles:
        made = _resolved(config, f"role {role.name!r}: specialization_cls", role.specialization_cls)
        if not (isinstance(made, type) and issubclass(made, Specialization)):
            raise Wrong(f"role {role.name!r}: specialization_cls is {made!r}, no subclass of Specialization")
        _require_waivers(role.name, made(trial.subject.args).waives())
        for stage in role.prepare:
            if not callable(_resolved(config, f"role {role.name!r}: prepare", stage)):
                raise Wrong(f"role {role.name!r}: the stage {stage!r} cannot be called")
    _resolved(config, "rollout", config.rollout)
    _resolved(config, "check_args", config.check_args)


def _require_waivers(role: str, waived: object) -> None:
    waivable = [name for name, known in CHECKS.items() if known.waivable]
    if not isinstance(waived, Mapping):
        raise Wrong(f"role {role!r}: waives() returns {type(waived).__name__}; return a dictionary of check and reason")
    for name, reason in waived.items():
        if name not in waivable:
            raise Wrong(f"role {role!r}: waives() names {name!r}; what can be waived is {', '.join(waivable)}")
        if not (isinstance(reason, str) and reason):
            raise Wrong(f"role {role!r}: waives() gives {reason!r} as the reason for {name!r}; say it in words")


def _resolved(config: TrainingConfig, where: str, reference: object) -> object:
    try:
        return resolve_object(reference)
    except StacxError as error:
        raise Wrong(f"{where}: {error}") from error


@check("recipe", applies_to_failing=True)
def pickling(trial: Trial) -> None:
    """The recipe pickles, and what comes back is equal to it.

    Finds: lambdas and local classes, which cannot reach another process.
    """
    config = trial.subject.config
    try:
        copy = pickle.loads(pickle.dumps(config))
    except Exception as error:
        raise Wrong(
            f"the recipe does not pickle: {error}; use functions and classes of a module, or object references"
        ) from error
    if copy != config:
        raise Wrong("the recipe changed on its way through pickle")


@check("recipe", applies_to_failing=True)
def unsupported_is_refused(trial: Trial) -> None:
    """A parallelism that the recipe does not list in `supports` is refused by name.

    Finds: claims that are no property the host knows.
    """
    config = trial.subject.config
    for name in PARALLELISMS:
        try:
            check_supported(config, name)
        except ConfigError as error:
            if name in config.supports:
                raise Wrong(f"{name} is in supports, and is refused all the same: {error}") from error
            if config.name not in str(error) or name not in str(error):
                raise Wrong(f"the refusal of {name} does not name the recipe and the property: {error}") from error
        else:
            if name not in config.supports:
                raise Wrong(f"{name} is not in supports, and is not refused")
