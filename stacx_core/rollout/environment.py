"""Environments: what an episode is played in, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from stacx_core.config import resolve_object
from stacx_core.data.sample import Message
from stacx_core.errors import ConfigError, RecipeError, nearest

Observation = str | list[Message]
"""Text of the next user turn, or the whole conversation so far, of an environment that rewrites history."""


@dataclass(frozen=True)
class Step:
    """What an action led to.

    Args:
        observation: The next user turn, or the whole conversation; not shown when ``done``.
        reward: Added to the reward of the episode.
        done: Whether the episode ends here.
        counts: What happened in this step, by name; added up over episodes and reported as ``count_NAME``.
    """

    observation: Observation
    reward: float = 0.0
    done: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


class Environment(Protocol):
    """One episode. Instances of the same class run in several threads, each in one at a time.

    Whatever is random derives from the seed given to ``reset``: the same seed and actions make the same episode.
    """

    def reset(self, seed: int) -> Observation:
        """Begin; returns the first observation. The seed is in ``[0, 2**31)``."""

    def step(self, action: str) -> Step:
        """Take in the text of an action."""

    def render(self) -> str:
        """The state for people and logs."""

    def close(self) -> None:
        """Let go of what the episode held."""


MakeEnvironment = Callable[[], Environment]
"""Makes the environment of one more episode."""


@runtime_checkable
class LimitedEnvironments(Protocol):
    """What makes environments, and knows what they need.

    Attributes:
        at_once: Most environments that are begun and not yet closed.
        longest_call: Seconds that a call of an environment may rightly take; ``--episode-timeout`` is no shorter.
    """

    at_once: int
    longest_call: float

    def __call__(self) -> Environment:
        """The environment of one more episode."""


@runtime_checkable
class ClosableEnvironments(LimitedEnvironments, Protocol):
    """Limited environments that can all be ended together."""

    def close(self) -> None:
        """End every environment, whatever is done in it, and make no more; from another thread."""


_METHODS = ("reset", "step", "render", "close")
_HARBOR = "harbor"


def has_numbered_tasks(reference: str | None) -> bool:
    """Whether a seed of these environments is ``2 * number`` of a training task, or ``2 * number + 1`` of a held-out
    one, so that a pass over them meets each of them once."""
    return reference is not None and reference.startswith(f"{_HARBOR}:")


def load_environment(reference: str) -> MakeEnvironment:
    """What makes the environments called ``reference``.

    Args:
        reference: ``textarena:NAME``, ``reasoning_gym:NAME[?OPTION=VALUE]``, ``harbor:FOLDER[?OPTION=VALUE]`` or
            ``package.module:Class``, a class (or function) that is called without arguments.

    Raises:
        ConfigError: There is no such environment, its package is not installed, or it cannot be called.
        DataError: The tasks of the folder cannot be used.
    """
    scheme, _, name = reference.partition(":")
    if scheme == "textarena":
        from stacx_core.rollout.environments.textarena_game import textarena_game

        return textarena_game(name)
    if scheme == "reasoning_gym":
        from stacx_core.rollout.environments.reasoning_gym_task import reasoning_gym_task

        return reasoning_gym_task(name)
    if scheme == _HARBOR and name:
        from stacx_core.swe.agent.harbor import harbor_tasks

        return harbor_tasks(name)
    if not name:
        raise ConfigError(
            f"no environment is called {reference!r}{nearest(scheme, ['textarena', 'reasoning_gym', _HARBOR])}; write "
            "textarena:NAME, reasoning_gym:NAME, harbor:FOLDER, or name your own class as 'package.module:Class'"
        )
    return _own(reference)


def _own(reference: str) -> MakeEnvironment:
    try:
        made: MakeEnvironment = resolve_object(reference)
    except RecipeError as error:
        raise ConfigError(f"environment {reference!r}: {error.message}", *error.hints) from error
    if not callable(made):
        raise ConfigError(f"environment {reference!r} is of type {type(made).__name__}; it must be a class")
    missing = [method for method in _METHODS if isinstance(made, type) and not hasattr(made, method)]
    if missing:
        raise ConfigError(
            f"environment {reference!r} has no {', '.join(missing)}; an environment has {', '.join(_METHODS)}"
        )
    return made
