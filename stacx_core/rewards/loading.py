"""From the name of a reward to its function."""

from __future__ import annotations

import inspect

from stacx_core.config import resolve_object
from stacx_core.errors import ConfigError, RecipeError, nearest
from stacx_core.rewards.exact import exact
from stacx_core.rewards.gsm8k import gsm8k
from stacx_core.rewards.reasoning_gym import reasoning_gym
from stacx_core.rewards.scoring import RewardFn

BUILT_IN: dict[str, RewardFn] = {"exact": exact, "gsm8k": gsm8k, "reasoning_gym": reasoning_gym}
"""Rewards that have a name of their own."""


def load_reward(rm_type: str) -> RewardFn:
    """The reward function called `rm_type`: a built-in name, or "package.module:function".

    Raises:
        ConfigError: no such name, the function cannot be imported, or it is no plain function of a sample.
    """
    if rm_type in BUILT_IN:
        return BUILT_IN[rm_type]
    if ":" not in rm_type:
        raise ConfigError(
            f"no reward is called {rm_type!r}{nearest(rm_type, BUILT_IN)}; "
            f"choose one of {', '.join(sorted(BUILT_IN))}, or name your own as 'package.module:function'"
        )
    try:
        function = resolve_object(rm_type)
    except RecipeError as error:
        raise ConfigError(f"reward {rm_type!r}: {error.message}", *error.hints) from error
    if not callable(function) or inspect.iscoroutinefunction(function):
        kind = "a coroutine function" if callable(function) else f"of type {type(function).__name__}"
        raise ConfigError(f"reward {rm_type!r} is {kind}; it must be a plain function of one sample")
    reward: RewardFn = function
    return reward
