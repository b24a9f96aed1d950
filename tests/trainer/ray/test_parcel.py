"""What a process refuses to train with: other versions, other plugins, another recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacx_core import TRAINING_CONFIGS, plugins
from stacx_core.errors import PluginError
from stacx_core.knobs import Args
from stacx_core.trainer.ray.parcel import Parcel, fingerprint


@pytest.fixture
def parcel(monkeypatch: pytest.MonkeyPatch) -> Parcel:
    """The parcel of a run of ppo; opening it gives this test a plugin host of its own."""
    monkeypatch.setattr(plugins, "_current", plugins.plugin_host())
    return Parcel.of(TRAINING_CONFIGS["ppo"], Args.of(lr=0.5))


def test_the_same_installation_opens_it(parcel: Parcel) -> None:
    config, args = parcel.open()
    assert (config, args) == (TRAINING_CONFIGS["ppo"], Args.of(lr=0.5))
    assert parcel.qualified == "stacx-plugin-grpo:ppo"


@pytest.mark.parametrize("name", ["stacx-core", "stacx-plugin-grpo"])
def test_another_version_is_refused(parcel: Parcel, name: str) -> None:
    other = replace(parcel, versions={**parcel.versions, name: "9.9"})
    with pytest.raises(PluginError, match=rf"{name} is version {parcel.versions[name]} here, and 9\.9 on the driver"):
        other.open()


def test_a_missing_plugin_is_refused(parcel: Parcel) -> None:
    other = replace(parcel, versions={**parcel.versions, "stacx-elsewhere": "1.0"})
    with pytest.raises(PluginError, match=r"stacx-elsewhere is not installed here, and 1\.0 on the driver"):
        other.open()


def test_another_recipe_of_the_same_version_is_refused(parcel: Parcel) -> None:
    with pytest.raises(PluginError, match="recipe 'stacx-plugin-grpo:ppo' differs from the driver's"):
        replace(parcel, fingerprint="0").open()


def test_every_field_of_a_recipe_counts() -> None:
    config = TRAINING_CONFIGS["ppo"]
    policy, critic = config.roles
    others = [
        replace(config, description="another"),
        replace(config, defaults={**config.defaults, "n_samples_per_prompt": 2}),
        replace(config, roles=(policy, replace(critic, overrides={}))),
        replace(config, syncs=(config.syncs[0], replace(config.syncs[1], when=None))),
    ]
    found = {fingerprint(recipe) for recipe in (config, *others)}
    assert len(found) == 5
    assert fingerprint(replace(config)) == fingerprint(config)
