"""What the tests share: the arguments of a run of a recipe, and a small whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import stacx_plugin_grpo.recipes  # noqa: F401
from stacx_core import TRAINING_CONFIGS, Args
from stacx_core.host_knobs import HOST_KNOBS

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def arguments() -> Callable[..., Args]:
    """The arguments of a recipe with its defaults, some of them set; host settings too."""

    def build(recipe: str = "grpo", **given: Any) -> Args:
        config = TRAINING_CONFIGS[recipe]
        defaults = {knob.name: knob.default for knob in (*HOST_KNOBS, *config.knobs)} | {"algorithm": recipe}
        unknown = given.keys() - defaults.keys()
        assert not unknown, f"{recipe} has no {unknown}"
        origins = dict.fromkeys(config.defaults.keys() - given.keys(), "recipe default")
        return Args({**defaults, **config.defaults, **given}, origins)

    return build


@pytest.fixture(scope="session")
def whole_batch() -> Callable[..., dict[str, Any]]:
    """A rollout of one group with these rewards and masks; other keys as given, lists of numbers as fp32 vectors."""

    def build(rewards: list[float], masks: list[list[int]], **keys: Any) -> dict[str, Any]:
        vectors = ("values", "log_probs", "ref_log_probs", "rollout_log_probs", "advantages", "kl")
        count = len(rewards)
        return {
            "tokens": [torch.zeros(len(mask) + 1, dtype=torch.int64) for mask in masks],
            "rewards": rewards,
            "raw_reward": list(rewards),
            "loss_masks": [torch.tensor(mask, dtype=torch.int32) for mask in masks],
            "response_lengths": [len(mask) for mask in masks],
            "group_indices": [0] * count,
            "rollout_ids": list(range(count)),
            "truncated": [0] * count,
            **{k: [torch.tensor(row) for row in v] if k in vectors else v for k, v in keys.items()},
        }

    return build
