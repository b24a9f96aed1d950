"""From the name of a reward to its function."""

from __future__ import annotations

import inspect

from stacx_core.config import resolve_object
from stacx_core.errors import ConfigError, RecipeError, nearest
from stacx_core.knobs import Args
from stacx_core.rewards.exact import exact
from stacx_core.rewards.gsm8k import gsm8k
from stacx_core.rewards.reasoning_gym import reasoning_gym
from stacx_core.rewards.scoring import Scorer

BUILT_IN: dict[str, Scorer] = {"exact": exact, "gsm8k": gsm8k, "reasoning_gym": reasoning_gym}
"""Rewards that have a name of their own."""


MODEL = "model"
"""The reward that is a trained model; it is imported only when it is asked for."""


def load_reward(rm_type: str, args: Args) -> Scorer:
    """The reward called `rm_type`: a built-in name, `model`, or "package.module:function".

    Raises:
        ConfigError: no such name, the function cannot be imported, it is no plain function of a sample, or the
            reward model does not fit.
    """
    if rm_type == MODEL:
        from stacx_core.rewards.model import ModelReward

        return ModelReward(args)
    if rm_type in BUILT_IN:
        return BUILT_IN[rm_type]
    if ":" not in rm_type:
        raise ConfigError(
            f"no reward is called {rm_type!r}{nearest(rm_type, [*BUILT_IN, MODEL])}; "
            f"choose one of {', '.join(sorted([*BUILT_IN, MODEL]))}, or name your own as 'package.module:function'"
        )
    try:
        function = resolve_object(rm_type)
    except RecipeError as error:
        raise ConfigError(f"reward {rm_type!r}: {error.message}", *error.hints) from error
    if hasattr(function, "score_batch"):
        batched: Scorer = function
        return batched
    if not callable(function) or inspect.iscoroutinefunction(function):
        kind = "a coroutine function" if callable(function) else f"of type {type(function).__name__}"
        raise ConfigError(f"reward {rm_type!r} is {kind}; it must be a plain function of one sample")
    reward: Scorer = function
    return reward
