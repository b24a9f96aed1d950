"""The arguments a recipe is checked under: its defaults, and each of its switches and choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stacx_core.config import TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args, Knob, resolve
from stacx_core.testing.deadline import Hangs
from stacx_core.trainer.plan import complete

DEFAULTS = "the defaults"
EVERYTHING = "everything switched on"

COLD = 0.5
"""A sampling temperature that is not 1."""

_RUN = {"output_dir": "unused", "num_rollout": 1, "device": "cpu", "ref_load": "unused"}
"""What a run needs and no loss reads."""


@dataclass(frozen=True)
class Variant:
    """Named arguments, complete as for a run."""

    name: str
    args: Args


class ArgumentsCrash(ConfigError):
    """Something other than a `ConfigError` was raised while arguments were completed: no refusal, but a fault."""


def default_variant(config: TrainingConfig) -> Variant:
    """The recipe's defaults, with placeholders where the user must choose.

    Raises:
        ConfigError: the recipe refuses its own defaults.
    """
    return Variant(DEFAULTS, _resolve(config, {}))


def variants(config: TrainingConfig) -> list[Variant]:
    """The defaults, everything on, and every switch, choice and aggregation by itself.

    What the recipe refuses by a `ConfigError` is left out. A change that is refused on top of the defaults, such
    as a choice that belongs to a switch, is tried on top of everything.
    """
    return explore(config)[0]


def explore(config: TrainingConfig) -> tuple[list[Variant], list[ArgumentsCrash]]:
    """The variants, and what went wrong with arguments that were neither taken nor refused.

    Raises:
        ConfigError: the recipe refuses its own defaults.
    """
    found, crashes = [default_variant(config)], list[ArgumentsCrash]()
    together = _everything(config, crashes)
    if together:
        found.append(Variant(EVERYTHING, _resolve(config, together)))
    for name, change in _single_changes(config):
        for base, suffix in (({}, ""), (together, f" with {EVERYTHING}")):
            args = _accepted(config, {**base, **change}, crashes)
            if args is not None:
                found.append(Variant(name + suffix, args))
                break
    return found, crashes


def knobs_of(config: TrainingConfig) -> dict[str, Knob]:
    """The knobs of the host and of the recipe by name."""
    return {knob.name: knob for knob in config.offered_knobs}


def _resolve(config: TrainingConfig, changes: Mapping[str, Any]) -> Args:
    """Complete arguments with some knobs set.

    Raises:
        ConfigError: what the recipe refuses.
        ArgumentsCrash: what it neither refuses nor takes.
    """
    knobs = knobs_of(config)
    loads = [role.load_arg for role in config.roles if role.load_arg]
    rewarded = any("rewards" in role.reads for role in config.roles)
    source = [] if "environment" in config.requires else ["prompt_data", *(["rm_type"] if rewarded else [])]
    needed = [*config.requires, *loads, "hf_checkpoint", *source]
    needed = [name for name in needed if name in knobs and name not in config.defaults]
    flags = {name: _placeholder(knobs[name]) for name in needed} | _RUN
    args = resolve(
        config.resolved_knobs,
        flags={**flags, **changes},
        environment={},
        config={},
        recipe_defaults=config.defaults,
    )
    try:
        return complete(config, args)
    except (ConfigError, KeyboardInterrupt, Hangs):
        raise
    except BaseException as error:
        names = ", ".join(f"{knobs[name].flag} {value}" for name, value in changes.items()) or DEFAULTS
        problem = f"{type(error).__name__}: {error}"
        raise ArgumentsCrash(f"under {names}, check_args raises {problem}; refuse by a ConfigError") from error


def _accepted(config: TrainingConfig, changes: Mapping[str, Any], crashes: list[ArgumentsCrash]) -> Args | None:
    try:
        return _resolve(config, changes)
    except ArgumentsCrash as crash:
        crashes.append(crash)
    except ConfigError:
        pass
    return None


def _placeholder(knob: Knob) -> Any:
    """A value that the knob takes and that is neither unset nor 0; None if none is found."""
    if knob.type is bool:
        return True
    if knob.type is str:
        return knob.choices[0] if knob.choices else "exact"
    low = max((bound for bound in (knob.minimum, knob.exclusive_minimum) if bound is not None), default=0)
    steps = (1, 2, 8) if knob.type is int else (0.5, 0.25, 0.01)
    return next((value for value in (knob.type(low + step) for step in steps) if _takes(knob, value)), None)


def _takes(knob: Knob, value: Any) -> bool:
    try:
        knob.validate(value, knob.flag)
    except ConfigError:
        return False
    return True


def _gates(config: TrainingConfig) -> list[str]:
    """Knobs that decide whether a role reads a key, in the order of the recipe."""
    conditions = (condition for role in config.roles for of_key in role.reads.values() for condition in of_key)
    return list(dict.fromkeys(condition.partition("=")[0] for condition in conditions))


def _everything(config: TrainingConfig, crashes: list[ArgumentsCrash]) -> dict[str, Any]:
    """All switches on and all coefficients that are 0 or unset given, as far as the recipe takes them together."""
    knobs = knobs_of(config)
    names = dict.fromkeys([*_gates(config), *(knob.name for knob in config.knobs)])
    start = _resolve(config, {})
    wanted = {name: _placeholder(knobs[name]) for name in names if knobs[name].type is not str and not start.get(name)}
    chosen: dict[str, Any] = {}
    for _ in range(2):  # A coefficient may be refused before the switch it belongs to is on.
        for name, value in wanted.items():
            if value is not None and name not in chosen and _accepted(config, {**chosen, name: value}, crashes):
                chosen[name] = value
    return chosen


def _single_changes(config: TrainingConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    knobs, start = knobs_of(config), _resolve(config, {})
    own = dict.fromkeys([*_gates(config), *(knob.name for knob in config.knobs), "loss_aggregation"])
    for knob in (knobs[name] for name in own if name in knobs):
        current = getattr(start, knob.name)
        if knob.type is bool:
            yield f"{knob.flag} {'off' if current else 'on'}", {knob.name: not current}
        elif knob.name in _gates(config) and knob.type is not str and not current:
            value = _placeholder(knob)
            if value is not None:
                yield f"{knob.flag} {value}", {knob.name: value}
        for choice in knob.choices:
            if choice != current:
                yield f"{knob.flag} {choice}", {knob.name: choice}
    if "rollout_temperature" in knobs:
        yield f"--rollout-temperature {COLD}", {"rollout_temperature": COLD}
