"""From the name of a reward to the reward."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stacx_core import ConfigError, nearest
from stacx_plugin_diffusion.rewards.aesthetic import AestheticScore
from stacx_plugin_diffusion.rewards.digit_classifier import digit_classifier
from stacx_plugin_diffusion.rewards.jpeg import jpeg_incompressibility, jpeg_size
from stacx_plugin_diffusion.rewards.scoring import MediaReward, Score

BUILT_IN: dict[str, Score] = {
    "digit_classifier": digit_classifier,
    "jpeg_incompressibility": jpeg_incompressibility,
    "jpeg_size": jpeg_size,
}
"""Rewards that have a name of their own."""

AESTHETIC = "aesthetic"


def load_reward(name: str, device: torch.device | str = "cpu") -> MediaReward:
    """The reward called `name`: a built-in one, ``aesthetic:FOLDER``, or ``package.module:function``.

    A function takes media ``[B, C, H, W]`` fp32 in [0, 1] and a list of B prompts, and returns B numbers.

    Args:
        name: Of the reward.
        device: Where a model that scores computes.

    Raises:
        ConfigError: No such name, the function cannot be imported or takes no two arguments.
        ModelError: The folder of a model that scores is not usable.
    """
    kind, _, rest = name.partition(":")
    if kind == AESTHETIC:
        if not rest:
            raise ConfigError(f"reward {name!r} needs the folder of its model: aesthetic:FOLDER")
        return MediaReward(name, AestheticScore(Path(rest), torch.device(device)))
    if name in BUILT_IN:
        return MediaReward(name, BUILT_IN[name])
    if not rest:
        choices = [*sorted(BUILT_IN), "aesthetic:FOLDER"]
        raise ConfigError(
            f"no reward is called {name!r}{nearest(name, choices)}; choose one of {', '.join(choices)}, "
            "or name your own as 'package.module:function'"
        )
    return MediaReward(name, _resolved(name, kind, rest))


def _resolved(name: str, module_name: str, attributes: str) -> Callable[..., Any]:
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"reward {name!r}: {module_name!r} cannot be imported: {error}") from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise ConfigError(f"reward {name!r}: no {attribute!r} there{nearest(attribute, dir(found))}")
        found = getattr(found, attribute)
    if not callable(found) or inspect.iscoroutinefunction(found) or inspect.isclass(found):
        raise ConfigError(f"reward {name!r} is no plain function of media and prompts, but {found!r}")
    function: Callable[..., Any] = found
    return function
