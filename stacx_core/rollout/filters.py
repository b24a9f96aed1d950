"""Which groups of responses are worth training on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from stacx_core.config import resolve_object
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, RecipeError, nearest

GroupFilter = Callable[[Sequence[Sample]], bool]
"""Gets the scored samples of one prompt; True keeps the group."""


def reward_std(group: Sequence[Sample]) -> bool:
    """Keep a group whose rewards differ (DAPO, Yu et al. 2025, section 3.2): others have no advantage to learn from.

    A reward that is a dictionary counts as different when any entry is.
    """
    rewards = [s.reward if isinstance(s.reward, dict) else {"": s.reward} for s in group if not s.removed]
    names = {name for reward in rewards for name in reward}
    return any(statistics.pstdev(float(reward[name] or 0.0) for reward in rewards) > 1e-6 for name in names)


BUILT_IN: dict[str, GroupFilter] = {"reward_std": reward_std}


def load_filter(name: str) -> GroupFilter:
    """The filter called ``name``: a built-in, or ``package.module:function``.

    Raises:
        ConfigError: No such filter, or it cannot be imported.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise ConfigError(
            f"no group filter is called {name!r}{nearest(name, BUILT_IN)}; "
            f"choose one of {', '.join(BUILT_IN)}, or name your own as 'package.module:function'"
        )
    try:
        function = resolve_object(name)
    except RecipeError as error:
        raise ConfigError(f"group filter {name!r}: {error.message}", *error.hints) from error
    if not callable(function):
        raise ConfigError(f"group filter {name!r} is of type {type(function).__name__}; it must be a function")
    chosen: GroupFilter = function
    return chosen
