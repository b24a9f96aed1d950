"""Environments: what an episode is played in, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
    """

    observation: Observation
    reward: float = 0.0
    done: bool = False


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

_METHODS = ("reset", "step", "render", "close")


def load_environment(reference: str) -> MakeEnvironment:
    """What makes the environments called ``reference``.

    Args:
        reference: ``textarena:NAME``, ``reasoning_gym:NAME[?OPTION=VALUE]`` or ``package.module:Class``, a class (or
            function) that is called without arguments.

    Raises:
        ConfigError: There is no such environment, its package is not installed, or it cannot be called.
    """
    scheme, _, name = reference.partition(":")
    if scheme == "textarena":
        from stacx_core.rollout.environments.textarena_game import textarena_game

        return textarena_game(name)
    if scheme == "reasoning_gym":
        from stacx_core.rollout.environments.reasoning_gym_task import reasoning_gym_task

        return reasoning_gym_task(name)
    if not name:
        raise ConfigError(
            f"no environment is called {reference!r}{nearest(scheme, ['textarena', 'reasoning_gym'])}; write "
            "textarena:NAME, reasoning_gym:NAME, or name your own class as 'package.module:Class'"
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
