"""Environments: what an episode is played in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from stacx_core.data.sample import Message

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
class NumberedEnvironments(LimitedEnvironments, Protocol):
    """Limited environments of so many tasks.

    Attributes:
        num_training: Tasks to train on.
        num_held_out: Tasks to evaluate on.
    """

    num_training: int
    num_held_out: int


@runtime_checkable
class ClosableEnvironments(LimitedEnvironments, Protocol):
    """Limited environments that can all be ended together."""

    def close(self) -> None:
        """End every environment, whatever is done in it, and make no more; from another thread."""
