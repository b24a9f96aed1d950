"""A sound policy-gradient recipe in one module, and plugins that put one fault into it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent, indent
from typing import Any

import pytest

from stacx_core.config import TrainingConfig

SOUND = '''
"""A clipped policy gradient on group-normalised rewards, in which each part can be replaced."""

import torch
from stacx_core import CausalDecoderSpecialization, ModelRole, TrainingConfig


class SoundLoss(CausalDecoderSpecialization):
    def compute_loss(self, model_output, batch, reducer):
        log_probs, _ = self.response_log_probs(model_output, batch)
        per_token = self.per_token(log_probs, batch)
        return reducer(per_token), {"pg_loss": self.mean_pair(per_token, batch)}

    def ratio(self, log_probs, batch):
        return (log_probs - self.flat(batch, "log_probs")).clamp(-20, 20).exp()

    def advantages(self, log_probs, batch):
        return self.flat(batch, "advantages")

    def per_token(self, log_probs, batch):
        ratio, advantages = self.ratio(log_probs, batch), self.advantages(log_probs, batch)
        return torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)


def group_advantages(batch, args):
    groups = {}
    for reward, group, rollout, mask in zip(
        batch["rewards"], batch["group_indices"], batch["rollout_ids"], batch["loss_masks"]
    ):
        if mask.any():
            groups.setdefault(group, {})[rollout] = reward
    values = []
    for reward, group, rollout in zip(batch["rewards"], batch["group_indices"], batch["rollout_ids"]):
        votes = groups.get(group, {})
        rewards = torch.tensor([*votes.values(), *([] if votes else [0.0])], dtype=torch.float64)
        flat = len(set(rewards.tolist())) == 1
        values.append(float((reward - rewards.mean()) / rewards.std()) if rollout in votes and not flat else 0.0)
    batch["advantages"] = [torch.full((n,), value) for n, value in zip(batch["response_lengths"], values)]
    return {}


def config(name, module, stage="sound:group_advantages", **fields):
    reads = {"rewards": (), "group_indices": (), "advantages": (), "log_probs": ()}
    role = ModelRole("policy", f"{module}:Loss", sync_to_rollout=True, reads=reads, prepare=(stage,))
    defaults = {"n_samples_per_prompt": 4}
    return TrainingConfig(name, (role,), description="planted", defaults=defaults, **fields)
'''
"""The module `sound`."""

PLUGIN = '''
import math
import torch
from stacx_core import recipe
import sound


class Loss(sound.SoundLoss):
    """{about}"""
{loss}

{stage}

@recipe("{name}")
def build():
    return sound.config("{name}", "{module}"{stage_field})
'''


def plugin_source(name: str, module: str, about: str, loss: str = "", stage: str = "") -> str:
    """The module of a plugin: the sound recipe with methods of its loss, or its stage `stage`, replaced."""
    field = f', "{module}:stage"' if stage else ""
    body = indent(dedent(loss), "    ")
    return PLUGIN.format(name=name, module=module, about=about, loss=body, stage=dedent(stage), stage_field=field)


@pytest.fixture(scope="session")
def sound_source() -> str:
    """The module that every planted plugin builds on."""
    return SOUND


@pytest.fixture(scope="session")
def make_source():
    """The function `plugin_source`."""
    return plugin_source


@pytest.fixture(scope="module")
def plant(
    tmp_path_factory: pytest.TempPathFactory, sound_source: str, make_source: Callable[..., str]
) -> Iterator[Callable[..., TrainingConfig]]:
    """A function that builds the sound recipe with a method of its loss, its stage or its `check_args` replaced."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "sound.py").write_text(sound_source)
    sys.path.insert(0, str(folder))

    def make(name: str, loss: str = "", stage: str = "", **fields: Any) -> TrainingConfig:
        (folder / f"{name}.py").write_text(make_source(name, name, "Planted.", loss, stage))
        importlib.invalidate_caches()
        importlib.import_module(name)
        reference = {"stage": f"{name}:stage"} if stage else {}
        config: TrainingConfig = importlib.import_module("sound").config(name, name, **reference, **fields)
        return config

    yield make
    sys.path.remove(str(folder))
