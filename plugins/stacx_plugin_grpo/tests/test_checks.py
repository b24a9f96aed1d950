"""Combinations of settings that are refused, and those that only warn."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stacx_core import TRAINING_CONFIGS, ConfigError

RECIPES = ("grpo", "gspo", "cispo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo")
KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_load": "reference"}


@pytest.fixture
def check(arguments: Any) -> Any:
    """Run a recipe's check on its defaults with some values set."""

    def run(recipe: str = "grpo", **given: Any) -> None:
        TRAINING_CONFIGS[recipe].check_args(arguments(recipe, **given))  # type: ignore[operator, misc]

    return run


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_defaults_pass(check: Any, recipe: str, caplog: pytest.LogCaptureFixture) -> None:
    check(recipe)
    assert caplog.messages == []


def test_the_preset_of_dapo_wants_room_for_its_penalty(check: Any) -> None:
    check("dapo", rollout_max_response_len=20480)
    with pytest.raises(ConfigError, match=r"--overlong-cache 4096 .* a fifth of it is usual: --overlong-cache 51"):
        check("dapo", rollout_max_response_len=256)


@pytest.mark.parametrize("correction", ["use_tis", "use_rs", "use_rollout_logprobs"])
def test_stale_samples_pass_with_a_ratio_to_their_weights(check: Any, correction: str) -> None:
    check(max_staleness=2, **{correction: True})
    check(partial_rollout=True, **{correction: True})


def test_tokens_of_older_weights_pass_when_they_are_not_trained(check: Any) -> None:
    check(partial_rollout=True, mask_offpolicy_in_partial_rollout=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_tis": True, "use_rollout_logprobs": True}, "drop one of the two"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, "--ref-load"),
        ({"kl_loss_coef": 0.1}, "--kl-loss-coef has no effect without --use-kl-loss"),
        ({"kl_loss_type": "k2"}, "--kl-loss-type has no effect without --use-kl-loss; add it"),
        ({"use_unbiased_kl": True}, "--use-unbiased-kl has no effect without --use-kl-loss"),
        ({"tis_clip": 3.0}, "--tis-clip has no effect without --use-tis"),
        ({"tis_level": "sequence"}, "--tis-level has no effect without --use-tis"),
        ({"tis_batch_normalize": True}, "--tis-batch-normalize has no effect without --use-tis"),
        ({"use_tis": True, "tis_clip": 0.5, "tis_clip_low": 0.7}, "0.7 is above --tis-clip 0.5"),
        ({"use_tis": True, "tis_mode": "truncate", "tis_clip_low": 0.1}, "has no lower bound"),
        ({"rs_upper_bound": 3.0}, "--rs-upper-bound has no effect without --use-rs"),
        ({"max_staleness": 1}, "add --use-tis to weight it by the ratio to them"),
        ({"max_staleness": 1, "recompute_log_probs": True}, "--use-rollout-logprobs to clip the ratio to them"),
        ({"partial_rollout": True}, "--partial-rollout trains .* --mask-offpolicy-in-partial-rollout does not"),
        ({"use_rs": True, "rs_upper_bound": 0.9}, "keeps ratios from 1.11111 to 0.9"),
        ({"opsm_delta": 0.1}, "--opsm-delta has no effect without --use-opsm"),
        ({"overlong_factor": 0.5}, "--overlong-factor has no effect without --overlong-cache"),
        ({"overlong_cache": 256}, "a fifth of it is usual: --overlong-cache 51"),
        ({"n_samples_per_prompt": 1}, "every advantage would be 0"),
        ({"n_samples_per_prompt": 1, "group_of_one": "error"}, "groups of one"),
        (
            {"disable_rewards_normalization": True, "disable_grpo_std_normalization": True},
            "--disable-grpo-std-normalization has no effect with --disable-rewards-normalization",
        ),
        ({"disable_rewards_normalization": True, "group_of_one": "raw"}, "--group-of-one has no effect with"),
        ({"mask_truncated": True, "truncated_in_group_stats": False}, "has no effect with --mask-truncated"),
        ({"use_rs": True, "rs_upper_bound": 4.0, "tis_clip": 3.0}, "--tis-clip has no effect on --use-rs with"),
    ],
)
def test_refused_combinations(check: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(**values)


@pytest.mark.parametrize(
    ("recipe", "values", "message"),
    [
        ("gspo", {"loss_aggregation": "token_mean"}, "token_mean would weight .* gspo needs sample_mean"),
        ("reinforce_pp", {"normalize_advantages": False}, "needs --normalize-advantages"),
        ("reinforce_pp_baseline", {"normalize_advantages": False}, "'reinforce_pp_baseline' .* --normalize-advantages"),
        ("reinforce_pp", {"kl_coef": 0.1}, "--kl-coef compares with a frozen reference"),
        ("reinforce_pp", {"kl_loss_type": "k2"}, "no effect without --use-kl-loss or --kl-coef"),
        ("ppo", {"kl_coef": 0.1, **KL}, "keep one of the two"),
        ("ppo", {"gae_bootstrap_truncated": True, "mask_truncated": True}, "has no effect on responses"),
        ("rloo", {"n_samples_per_prompt": 1}, "--group-of-one raw"),
    ],
)
def test_refusals_of_one_recipe(check: Any, recipe: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(recipe, **values)


@pytest.mark.parametrize(
    ("recipe", "values"),
    [
        ("grpo", {"n_samples_per_prompt": 1, "group_of_one": "raw"}),
        ("grpo", {"n_samples_per_prompt": 1, "disable_rewards_normalization": True}),
        ("grpo", KL),
        ("grpo", {**KL, "kl_loss_type": "k1", "use_unbiased_kl": True}),
        ("grpo", {"use_rs": True, "tis_clip": 5.0}),
        ("grpo", {"use_rs": True, "use_tis": True, "tis_clip": 5.0, "rs_upper_bound": 4.0}),
        ("reinforce_pp_baseline", {"kl_coef": 0.1, "ref_load": "reference"}),
        ("grpo", {"use_tis": True, "use_rs": True, "rs_level": "geometric", "rs_veto_threshold": 1e-4}),
        ("grpo", {"overlong_cache": 50, "overlong_factor": 0.5}),
        ("reinforce_pp", {"kl_coef": 0.1, "ref_load": "reference"}),
        ("reinforce_pp_baseline", KL),
        ("ppo", {"kl_coef": 0.1, "ref_load": "reference", "kl_loss_type": "k1"}),
        ("ppo", KL),
    ],
)
def test_accepted_combinations(
    check: Any, recipe: str, values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    check(recipe, **values)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("recipe", "values", "message"),
    [
        ("grpo", {**KL, "kl_loss_type": "k1"}, "zero expected gradient"),
        ("grpo", {**KL, "kl_loss_coef": 0.0}, "only measures"),
        ("ppo", {"kl_coef": 0.1, "ref_load": "reference", "kl_loss_type": "k3"}, "k3 in the reward does not have"),
    ],
)
def test_odd_combinations_warn(
    check: Any, recipe: str, values: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check(recipe, **values)
    assert message in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps_clip", -0.1),
        ("eps_clip_c", 1.0),
        ("kl_loss_type", "k4"),
        ("tis_clip", 0.0),
        ("tis_level", "word"),
        ("rs_veto_threshold", 0.0),
        ("gamma", 1.1),
        ("gae_masking", "some"),
        ("value_clip", -1.0),
        ("num_critic_only_steps", -1),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: object) -> None:
    knob = next(knob for knob in TRAINING_CONFIGS["ppo"].knobs if knob.name == name)
    with pytest.raises(ConfigError):
        knob.validate(value, knob.flag)
