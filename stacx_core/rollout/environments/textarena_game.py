"""A game of the textarena package for one player as an environment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stacx_core.data.sources import named_options, require
from stacx_core.errors import ConfigError, nearest
from stacx_core.rollout.environment import Environment, Step

EXTRA = "textarena"

_turn_of_the_games = threading.Lock()


class TextArenaGame:
    """Shows what the game says since the last action; the conversation itself is the history.

    The package's wrappers of observations, which repeat the history in each, are left aside; those of actions stay. Its
    games draw from Python's one global generator, so each game gets it in the state in which it left it.

    Args:
        package: The imported package.
        name: Of the game.
        options: Of the game.
    """

    def __init__(self, package: Any, name: str, options: dict[str, Any]) -> None:
        self._game = package.make(name, **options)
        self._inner = self._game
        while isinstance(self._inner, package.Wrapper):
            self._inner = self._inner.env
        self._own = package.ObservationType.PLAYER_ACTION
        self._random = random.Random()

    def reset(self, seed: int) -> str:
        """The rules of the game."""
        self._random.seed(seed)
        with self._dealing():
            self._game.reset(num_players=1, seed=seed)
            return self._said()

    def step(self, action: str) -> Step:
        """What the game says next; the reward comes with the end."""
        with self._dealing():
            done, _ = self._game.step(action)
            rewards, _ = self._game.close() if done else ({0: 0.0}, {})
            return Step(self._said(), float(rewards[0]), bool(done))

    def render(self) -> str:
        """The board, of a game that has one."""
        return str(self._inner.get_board_str()) if hasattr(self._inner, "get_board_str") else ""

    def close(self) -> None:
        """Nothing to let go of."""

    def _said(self) -> str:
        _, messages = self._inner.get_observation()
        return "\n".join(text for _, text, kind in messages if kind != self._own)

    @contextmanager
    def _dealing(self) -> Iterator[None]:
        with _turn_of_the_games:
            before = random.getstate()
            random.setstate(self._random.getstate())
            try:
                yield
            finally:
                self._random.setstate(random.getstate())
                random.setstate(before)


def textarena_game(text: str) -> Callable[[], Environment]:
    """What makes the environments of ``NAME[?OPTION=VALUE&...]``.

    Raises:
        ConfigError: Unknown game, or the package is not installed.
    """
    package = require("textarena", EXTRA, f"environment 'textarena:{text}'")
    name, options = named_options(text)
    known = package.envs.registration.ENV_REGISTRY
    if name not in known:
        raise ConfigError(
            f"textarena has no game {name!r}{nearest(name, known)}; print(textarena.envs.registration.ENV_REGISTRY) "
            "lists them"
        )
    return lambda: TextArenaGame(package, name, options)
