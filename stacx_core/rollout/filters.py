"""Which groups of responses are worth training on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from stacx_core.config import resolve_object
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, RecipeError, RewardError, nearest
from stacx_core.knobs import Args

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


Draw = Callable[[int, int], Generator[list[Sample]]]
"""Makes at least so many further groups, the first of which gets a number within the rollout, until it is closed."""


def collect_groups(args: Args, keep: GroupFilter | None, draw: Draw) -> tuple[list[list[Sample]], dict[str, float]]:
    """The groups of a rollout, those that do not pass replaced in bounded rounds; no more are made than are needed.

    Args:
        args: Of the run; ``rollout_batch_size`` groups are wanted.
        keep: The filter of ``--dynamic-sampling-filter``; None keeps all.
        draw: Makes groups.

    Returns:
        The groups kept, and the metrics of the filter.

    Raises:
        RewardError: Too few passed, under ``--dynamic-sampling-exhausted raise``.
    """
    wanted = args.rollout_batch_size
    kept: list[list[Sample]] = []
    drawn = rounds = 0
    while len(kept) < wanted and rounds < args.dynamic_sampling_max_rounds:
        rounds += 1
        with closing(draw(wanted - len(kept), drawn)) as groups:
            for group in groups:
                drawn += 1
                if keep is None or keep(group):
                    kept.append(group)
                if len(kept) == wanted:
                    break
    if len(kept) < wanted and args.dynamic_sampling_exhausted == "raise":
        raise RewardError(
            f"only {len(kept)} of {wanted} groups passed {args.dynamic_sampling_filter} in {rounds} rounds; "
            "raise --dynamic-sampling-max-rounds, or choose prompts that are neither solved nor hopeless"
        )
    if keep is None:
        return kept, {}
    return kept, {"sampling_rounds": float(rounds), "filtered_groups": float(drawn - len(kept))}
