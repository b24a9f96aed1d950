"""The recipes, their knobs, and the combinations that are refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from stacx_core import Args, ConfigError, ModelRole
from stacx_core.config import resolve_object
from stacx_plugin_preference.knobs import DPO_KNOBS, LOSS_TYPES, check_dpo, check_offline
from stacx_plugin_preference.recipes import dpo, reward_model


@pytest.mark.parametrize(
    "values",
    [
        {"dpo_label_smoothing": 0.1, "dpo_sft_coef": 1.0},
        {"dpo_loss_type": "robust", "dpo_label_smoothing": 0.1},
        {"dpo_loss_type": "hinge", "ref_load": "model"},
        {"dpo_loss_type": "ipo", "ipo_sum": True},
        {"dpo_loss_type": "simpo", "dpo_beta": 2.0, "simpo_gamma": 0.5},
        {"dpo_loss_type": "orpo", "orpo_lambda": 0.5},
        {"dpo_loss_type": "kto", "kto_undesirable_weight": 0.0, "desirable_key": "good"},
    ],
)
def test_what_each_loss_takes(args_of: Callable[..., Args], values: dict[str, Any]) -> None:
    check_dpo(args_of(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dpo_loss_type": "hinge", "dpo_label_smoothing": 0.1}, "use one of sigmoid, robust"),
        ({"dpo_loss_type": "ipo", "dpo_label_smoothing": 0.1}, "--dpo-label-smoothing has no effect on .* ipo"),
        ({"dpo_loss_type": "robust"}, "give it as --dpo-label-smoothing"),
        ({"ipo_sum": True}, "--ipo-sum has no effect on --dpo-loss-type sigmoid"),
        ({"simpo_gamma": 0.5}, "use one of simpo"),
        ({"orpo_lambda": 0.5}, "use one of orpo"),
        ({"dpo_loss_type": "orpo", "dpo_beta": 0.5}, "--dpo-beta has no effect"),
        ({"dpo_loss_type": "orpo", "dpo_sft_coef": 0.5}, "--dpo-sft-coef has no effect"),
        ({"dpo_loss_type": "kto", "dpo_sft_coef": 0.5}, "--dpo-sft-coef has no effect"),
        ({"kto_desirable_weight": 2.0}, "use one of kto"),
        ({"completion_key": "text"}, "use one of kto"),
        ({"dpo_loss_type": "simpo", "ref_load": "model"}, "simpo has no reference"),
        ({"dpo_loss_type": "kto", "kto_desirable_weight": 0.0, "kto_undesirable_weight": 0.0}, "both 0"),
        ({"loss_aggregation": "token_mean"}, "a preference has one loss per pair"),
        ({"rollout_temperature": 0.7}, "none is sampled"),
        ({"n_samples_per_prompt": 2}, "none is sampled"),
    ],
)
def test_refused_combinations(args_of: Callable[..., Args], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_dpo(args_of(**values))
    if set(values) & {"loss_aggregation", "rollout_temperature", "n_samples_per_prompt"}:
        with pytest.raises(ConfigError, match=message):
            check_offline(args_of(**values))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dpo_loss_type", "sigmod", r"is not one of .* \(did you mean 'sigmoid'\?\)"),
        ("dpo_label_smoothing", "0.5", "must be below 0.5"),
        ("dpo_beta", "0", "must be greater than 0"),
    ],
)
def test_refused_values(name: str, text: str, message: str) -> None:
    knob = next(knob for knob in DPO_KNOBS if knob.name == name)
    with pytest.raises(ConfigError, match=message):
        knob.parse(text, knob.flag)


@pytest.mark.parametrize("kind", LOSS_TYPES)
def test_only_losses_with_a_reference_ask_for_one(args_of: Callable[..., Args], kind: str) -> None:
    (sync,) = dpo().syncs
    assert sync.when is not None
    assert sync.when(args_of(dpo_loss_type=kind)) == (kind not in ("simpo", "orpo"))


def test_what_the_policy_reads() -> None:
    policy, reference = dpo().roles
    assert policy.reads["log_probs"] == policy.reads["kto_baseline"] == ("dpo_loss_type=kto",)
    assert "dpo_loss_type=kto" not in policy.reads["pair_ids"]
    assert "dpo_loss_type=simpo" not in policy.reads["ref_log_probs"]
    assert (reference.trainable, reference.load_arg, reference.pool) == (False, "ref_load", "policy")


@pytest.mark.parametrize("config", [dpo(), reward_model()], ids=lambda config: config.name)
def test_every_object_of_a_recipe_can_be_found(config: Any) -> None:
    references: list[Any] = [config.rollout, config.check_args]
    for role in config.roles:
        assert isinstance(role, ModelRole)
        references += [role.specialization_cls, *role.prepare]
    assert all(callable(resolve_object(reference)) for reference in references)
    assert pickle.loads(pickle.dumps(config)) == config


def test_listing_the_recipes_needs_no_torch() -> None:
    code = "import sys, stacx_plugin_preference.recipes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
