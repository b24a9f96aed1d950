"""The recipe, its knobs, and the combinations that are refused."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Any

import pytest

from stacx_core import Args, ConfigError, ModelRole, TrainingConfig
from stacx_core.config import resolve_object
from stacx_plugin_grpo.knobs import KNOBS, check_args
from stacx_plugin_grpo.recipes import grpo


def arguments(**values: Any) -> Args:
    host = {"ref_load": None, "n_samples_per_prompt": 8}
    return Args.of(**{knob.name: knob.default for knob in KNOBS} | host | values)


def test_the_defaults_pass() -> None:
    check_args(arguments())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_tis": True, "use_rollout_logprobs": True}, "drop one of the two"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, "--ref-load"),
        ({"kl_loss_coef": 0.1}, "--kl-loss-coef has no effect without --use-kl-loss"),
        ({"kl_loss_type": "k2"}, "--kl-loss-type has no effect without --use-kl-loss"),
        ({"use_unbiased_kl": True}, "--use-unbiased-kl has no effect without --use-kl-loss"),
        ({"tis_clip": 3.0}, "--tis-clip has no effect without --use-tis"),
        ({"use_tis": True, "tis_clip": 0.5, "tis_clip_low": 0.7}, "0.7 is above --tis-clip 0.5"),
        ({"n_samples_per_prompt": 1}, "every advantage would be 0"),
        ({"n_samples_per_prompt": 1, "group_of_one": "error"}, "groups of one"),
    ],
)
def test_refused_combinations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_args(arguments(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"n_samples_per_prompt": 1, "group_of_one": "raw"},
        {"n_samples_per_prompt": 1, "disable_rewards_normalization": True},
        {"use_kl_loss": True, "kl_loss_coef": 0.001, "ref_load": "reference"},
        {
            "use_kl_loss": True,
            "kl_loss_coef": 1.0,
            "ref_load": "r",
            "kl_loss_type": "k1",
            "use_unbiased_kl": True,
        },
    ],
)
def test_accepted_combinations(values: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    check_args(arguments(**values))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kl_loss_coef": 0.1, "kl_loss_type": "k1"}, "zero expected gradient"),
        ({"kl_loss_coef": 0.0}, "only measures"),
    ],
)
def test_odd_combinations_warn(values: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_args(arguments(use_kl_loss=True, ref_load="reference", **values))
    assert message in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps_clip", -0.1),
        ("eps_clip_c", 1.0),
        ("kl_loss_type", "k4"),
        ("group_of_one", "nan"),
        ("tis_clip", 0.0),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: object) -> None:
    knob = next(knob for knob in KNOBS if knob.name == name)
    with pytest.raises(ConfigError):
        knob.validate(value, knob.flag)


def test_flags_keep_their_usual_names() -> None:
    flags = {knob.flag for knob in KNOBS}
    assert {"--eps-clip", "--eps-clip-high", "--eps-clip-c", "--kl-loss-coef", "--use-kl-loss"} <= flags
    assert {"--use-tis", "--tis-clip", "--use-rollout-logprobs", "--disable-grpo-std-normalization"} <= flags


def test_the_recipe_is_one_role_whose_references_resolve() -> None:
    config = grpo()
    assert isinstance(config, TrainingConfig)
    (policy,) = config.roles
    assert isinstance(policy, ModelRole)
    assert policy.sync_to_rollout
    assert resolve_object(policy.specialization_cls).__name__ == "ActorSpecialization"
    assert [resolve_object(stage).__name__ for stage in policy.prepare] == ["group_advantages"]
    assert resolve_object(config.check_args) is check_args


def test_the_recipe_pickles() -> None:
    restored = pickle.loads(pickle.dumps(grpo()))
    assert (restored.name, dict(restored.defaults)) == ("grpo", {"n_samples_per_prompt": 8})


def test_importing_the_recipe_does_not_import_torch() -> None:
    code = "import sys, stacx_plugin_grpo.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
