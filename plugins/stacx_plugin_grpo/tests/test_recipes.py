"""Every recipe of the package: its roles, its defaults, and that nothing of it needs torch before training."""

from __future__ import annotations

import pickle
import subprocess
import sys
from argparse import Namespace

import pytest

import stacx_plugin_grpo.recipes
from stacx_core import TRAINING_CONFIGS, infer_algorithm
from stacx_core.config import resolve_object

ACTORS = {
    "cispo": "CispoActor",
    "dapo": "ActorSpecialization",
    "grpo": "ActorSpecialization",
    "gspo": "GspoActor",
    "ppo": "ActorSpecialization",
    "reinforce_pp": "ActorSpecialization",
    "reinforce_pp_baseline": "ReinforceBaselineActor",
    "rloo": "ActorSpecialization",
}


def test_each_module_brings_the_recipe_of_its_name() -> None:
    modules = {name.rpartition(".")[2] for name in sys.modules if name.startswith("stacx_plugin_grpo.recipes.")}
    assert modules == set(ACTORS)
    assert all(TRAINING_CONFIGS[name].name == name for name in ACTORS)


@pytest.mark.parametrize("name", ACTORS)
def test_all_references_resolve(name: str) -> None:
    config = TRAINING_CONFIGS[name]
    policy = config.roles[0]
    assert (policy.name, policy.sync_to_rollout) == ("policy", True)
    assert resolve_object(policy.specialization_cls).__name__ == ACTORS[name]
    for role in config.roles:
        assert all(callable(resolve_object(stage)) for stage in role.prepare)
    assert callable(config.check_args)


@pytest.mark.parametrize("name", ACTORS)
def test_a_recipe_survives_pickling(name: str) -> None:
    config = TRAINING_CONFIGS[name]
    restored = pickle.loads(pickle.dumps(config))
    assert (restored.name, dict(restored.defaults)) == (name, dict(config.defaults))


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        *((name, name) for name in ("grpo", "gspo", "cispo", "dapo", "rloo", "ppo")),
        ("reinforce_plus_plus", "reinforce_pp"),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
    ],
)
def test_an_estimator_stands_for_its_recipe(estimator: str, name: str) -> None:
    assert infer_algorithm(Namespace(advantage_estimator=estimator)) == name


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("gspo", {"eps_clip": 3e-4, "eps_clip_high": 4e-4, "n_samples_per_prompt": 8}),
        ("cispo", {"eps_clip": 1.0, "eps_clip_high": 0.28, "n_samples_per_prompt": 8}),
        ("rloo", {"n_samples_per_prompt": 8}),
        ("reinforce_pp", {"normalize_advantages": True, "n_samples_per_prompt": 1}),
        ("reinforce_pp_baseline", {"normalize_advantages": True, "n_samples_per_prompt": 8}),
        ("ppo", {"n_samples_per_prompt": 1}),
        (
            "dapo",
            {
                "eps_clip": 0.2,
                "eps_clip_high": 0.28,
                "loss_aggregation": "token_mean",
                "dynamic_sampling_filter": "reward_std",
                "overlong_cache": 4096,
                "rollout_max_response_len": 20480,
                "n_samples_per_prompt": 8,
            },
        ),
    ],
)
def test_own_defaults(name: str, defaults: dict[str, object]) -> None:
    assert dict(TRAINING_CONFIGS[name].defaults) == defaults


def test_dapo_is_a_preset_of_grpo() -> None:
    dapo, grpo = TRAINING_CONFIGS["dapo"], TRAINING_CONFIGS["grpo"]
    assert (dapo.roles, dapo.knobs) == (grpo.roles, grpo.knobs)
    values = {knob.name: knob.default for knob in dapo.knobs}
    assert (values["entropy_coef"], values["use_kl_loss"]) == (0.0, False)


def test_ppo_exchanges_values_and_log_probs() -> None:
    policy, critic = TRAINING_CONFIGS["ppo"].roles
    assert (critic.head, critic.load_arg, dict(critic.overrides)) == ("scalar", "critic_load", {"lr": "critic_lr"})
    assert policy.frozen_for == "num_critic_only_steps"
    exchange, inject = TRAINING_CONFIGS["ppo"].syncs
    assert (exchange.mode, exchange.src, exchange.keys) == ("exchange", "critic", ("values",))
    assert exchange.reverse_keys == ("log_probs",)
    assert (inject.mode, inject.dst, inject.keys) == ("inject", "critic", ("ref_log_probs",))
    assert inject.when is not None
    assert [inject.when(Namespace(kl_coef=coefficient)) for coefficient in (0.0, 0.1)] == [False, True]  # type: ignore[arg-type]


def test_both_roles_of_ppo_run_the_same_estimator() -> None:
    policy, critic = TRAINING_CONFIGS["ppo"].roles
    assert critic.prepare == policy.prepare[: len(critic.prepare)]


def test_the_pipeline_shapes_before_and_whitens_after_the_estimator() -> None:
    stages = [str(stage).rpartition(":")[2] for stage in TRAINING_CONFIGS["reinforce_pp"].roles[0].prepare]
    assert stages == ["shape_overlong", "reward_kl", "token_returns", "whiten_advantages", "normalize_importance"]


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("grpo", {"kl_coef", "gamma", "value_clip"}),
        ("cispo", {"eps_clip_c"}),
        ("rloo", {"disable_grpo_std_normalization", "lambd"}),
        ("reinforce_pp", {"group_of_one", "lambd"}),
        ("reinforce_pp_baseline", {"gamma", "gae_masking"}),
        ("ppo", {"group_of_one", "disable_rewards_normalization"}),
    ],
)
def test_a_recipe_has_no_knob_that_it_does_not_use(name: str, unused: set[str]) -> None:
    assert not unused & {knob.name for knob in TRAINING_CONFIGS[name].knobs}


def test_flags_keep_their_usual_names() -> None:
    flags = {knob.flag for name in ACTORS for knob in TRAINING_CONFIGS[name].knobs}
    assert {"--eps-clip", "--eps-clip-high", "--eps-clip-c", "--kl-loss-coef", "--use-kl-loss", "--kl-coef"} <= flags
    assert {"--use-tis", "--tis-clip", "--use-rollout-logprobs", "--disable-grpo-std-normalization"} <= flags
    assert {"--gamma", "--lambd", "--value-clip", "--num-critic-only-steps", "--use-opsm", "--opsm-delta"} <= flags


def test_importing_the_recipes_does_not_import_torch() -> None:
    code = f"import sys, {stacx_plugin_grpo.recipes.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
