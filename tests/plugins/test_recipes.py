"""Registering recipes, the read-only view, and which recipe a run's arguments ask for."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from stacx_core import (
    TRAINING_CONFIGS,
    Args,
    ConfigError,
    ModelRole,
    RecipeError,
    TrainingConfig,
    UnknownRecipeError,
    infer_algorithm,
    recipe,
)
from stacx_core.recipes import ESTIMATOR_RECIPES, Registry


def config(name: str = "mine") -> TrainingConfig:
    return TrainingConfig(name, (ModelRole("policy", "a:B"),))


def test_the_name_must_match() -> None:
    with pytest.raises(RecipeError, match="recipe 'yours': name is 'mine'"):
        recipe("yours")(config)


def test_the_function_must_return_a_config() -> None:
    with pytest.raises(RecipeError, match="recipe 'mine': its function returned None"):
        recipe("mine")(lambda: None)  # type: ignore[type-var]


def test_the_same_code_may_run_again_but_other_code_may_not_take_its_name() -> None:
    registry = Registry()
    registry.add(config(), "module", "file.py:3")
    registry.add(config(), "module", "file.py:3")
    assert len(registry.registrations) == 1
    with pytest.raises(RecipeError, match=r"'mine' is registered twice by module: file\.py:3 and file\.py:9"):
        registry.add(config(), "module", "file.py:9")


def test_the_view_is_a_read_only_mapping() -> None:
    assert "sft" in TRAINING_CONFIGS
    assert TRAINING_CONFIGS["sft"].name == "sft"
    assert len(TRAINING_CONFIGS) == len(list(TRAINING_CONFIGS))
    assert TRAINING_CONFIGS.get("no such recipe") is None
    with pytest.raises(TypeError):
        TRAINING_CONFIGS["sft"] = config()  # type: ignore[index]


@pytest.mark.parametrize("error", [UnknownRecipeError, KeyError, ValueError])
def test_an_unknown_recipe(error: Any) -> None:
    with pytest.raises(error, match=r"no recipe is named 'stf'; the closest are: .*sft"):
        TRAINING_CONFIGS["stf"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        *(({"advantage_estimator": key}, value) for key, value in ESTIMATOR_RECIPES.items()),
        ({"use_critic": True, "advantage_estimator": "grpo"}, "ppo"),
        ({"loss_type": "sft_loss", "advantage_estimator": "grpo"}, "sft"),
        ({"loss_type": "policy_loss", "advantage_estimator": "grpo"}, "grpo"),
        ({"algorithm": "sft", "use_critic": True}, "sft"),
        ({"algorithm": "stacx-core:sft"}, "stacx-core:sft"),
        (
            {"algorithm": None, "use_critic": False, "advantage_estimator": "reinforce_plus_plus"},
            "reinforce_pp",
        ),
    ],
)
def test_inferring_the_recipe(args: Any, expected: Any) -> None:
    assert infer_algorithm(SimpleNamespace(**args)) == expected
    assert infer_algorithm(Args.of(**args)) == expected


def test_an_explicit_recipe_must_exist() -> None:
    with pytest.raises(ValueError, match=r"closest are: .*sft"):
        infer_algorithm(SimpleNamespace(algorithm="sfft", advantage_estimator="grpo"))


@pytest.mark.parametrize("args", [{}, {"advantage_estimator": "gae"}])
def test_nothing_to_infer_from_lists_the_map(args: Any) -> None:
    with pytest.raises(ConfigError, match="reinforce_plus_plus -> reinforce_pp, "):
        infer_algorithm(SimpleNamespace(**args))


@pytest.mark.parametrize(("origin", "warnings"), [("flag", 1), ("default", 0)])
def test_a_contradicting_estimator_is_warned_about_unless_nobody_set_it(
    origin: Any, warnings: Any, caplog: Any
) -> None:
    args = Args({"algorithm": "sft", "advantage_estimator": "ppo"}, {"advantage_estimator": origin})
    with caplog.at_level(logging.WARNING):
        assert infer_algorithm(args) == "sft"
    assert len(caplog.records) == warnings


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("reinforce_pp_baseline", "stacx-plugin-grpo"),
        ("opd", "stacx-plugin-distill"),
        ("mixture_dagger_opd", "stacx-plugin-dagger"),
        ("dpo", "stacx-plugin-preference"),
        ("stacx-plugin-diffusion:mix_grpo", "stacx-plugin-diffusion"),
    ],
)
def test_a_known_recipe_that_is_not_installed_names_its_package(site: Any, name: Any, package: Any) -> None:
    program = f"""
from stacx_core.plugins import PluginHost
from stacx_core.plugin_selection import PluginSelection
PluginHost(PluginSelection(), discovered=[]).find("{name}")
"""
    done = site.python("-c", program)
    assert "UnknownRecipeError" in done.err
    assert f"pip install {package}\n" in done.err
