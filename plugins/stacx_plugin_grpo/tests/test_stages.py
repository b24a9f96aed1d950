"""The whole-batch stages around the estimators, and the estimators that look at tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stacx_core import TRAINING_CONFIGS, NonFiniteError
from stacx_core.config import resolve_object
from stacx_core.objectives import kl_estimate
from stacx_plugin_grpo.recipes.ppo import gae
from stacx_plugin_grpo.recipes.reinforce_pp import token_returns
from stacx_plugin_grpo.recipes.reinforce_pp_baseline import centred_advantages
from stacx_plugin_grpo.shaping import normalize_importance, overlong_penalty, reward_kl, shape_overlong

MASKS = [[1, 1, 0, 1, 1], [1, 1, 0]]
KL = [[0.05, 0.1, 0.2, -0.05, 0.02], [0.1, 0.0, 0.3]]
OLD = [[-0.6, -1.0, -0.35], [-0.8, -2.0, -1.0, -1.05]]
ENGINE = [[-0.62, -0.95, -0.3], [-0.85, -2.1, -1.4, -1.0]]
REF = [[-0.55, -1.1, -0.4], [-1.0, -1.9, -0.8, -0.9]]


def pipeline(recipe: str, batch: dict[str, Any], args: Any, role: int = 0) -> dict[str, float]:
    """Run all stages of a role in order."""
    metrics: dict[str, float] = {}
    for stage in TRAINING_CONFIGS[recipe].roles[role].prepare:
        metrics |= resolve_object(stage)(batch, args)
    return metrics


def test_worked_values_of_the_overlong_penalty() -> None:
    assert [overlong_penalty(n, 100, 20) for n in (70, 80, 85, 100, 120)] == [0, 0, -0.25, -1, -1]
    assert overlong_penalty(90, 100, 20, factor=2.0) == -1.0


def test_long_responses_lose_reward_and_keep_their_raw_one(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 1.0], [[1] * 4, [1] * 9])
    given = batch["rewards"]
    metrics = shape_overlong(batch, arguments(overlong_cache=4, rollout_max_response_len=10))
    assert (batch["rewards"], batch["raw_reward"]) == ([1.0, 0.25], [1.0, 1.0])
    assert given == [1.0, 1.0]
    assert metrics == {"overlong_frac": 0.5}


def test_without_a_cache_nothing_is_shaped(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0], [[1] * 9])
    assert shape_overlong(batch, arguments(rollout_max_response_len=10)) == {}
    assert batch["rewards"] == [1.0]


def test_the_penalty_comes_before_the_statistics_of_the_group(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 1.0], [[1] * 4, [1] * 10])
    given = arguments("rloo", overlong_cache=5, rollout_max_response_len=10)
    assert pipeline("rloo", batch, given)["flat_group_frac"] == 0
    assert [a[0].item() for a in batch["advantages"]] == [1.0, -1.0]


@pytest.mark.parametrize("recipe", ["reinforce_pp", "reinforce_pp_baseline", "ppo"])
def test_the_divergence_in_the_reward_is_k1_unless_told(whole_batch: Any, arguments: Any, recipe: str) -> None:
    batch = whole_batch([0.0, 0.0], [[1, 1, 1], [1, 0, 1, 1]], log_probs=OLD, ref_log_probs=REF)
    metrics = reward_kl(batch, arguments(recipe, kl_coef=0.1))
    assert batch["kl"][0].tolist() == pytest.approx([-0.05, 0.1, 0.05], abs=2e-6)
    assert metrics["reward_kl_mean"] == pytest.approx((-0.05 + 0.1 + 0.05 + 0.2 - 0.2 - 0.15) / 6, abs=2e-6)
    reward_kl(batch, arguments(recipe, kl_coef=0.1, kl_loss_type="k2"))
    assert batch["kl"][0].tolist() == pytest.approx([0.00125, 0.005, 0.00125], abs=2e-6)


@pytest.mark.parametrize(("kind", "exact"), [("k1", True), ("k2", False), ("k3", False)])
def test_only_k1_in_the_reward_has_the_gradient_of_the_reverse_divergence(kind: str, exact: bool) -> None:
    """The policy gradient of a penalty, by enumeration of three tokens, each held fixed as a sample."""
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    log_probs = logits.log_softmax(-1)
    penalty = kl_estimate(log_probs, reference, kind).detach()
    (gradient,) = torch.autograd.grad((log_probs.exp().detach() * penalty * log_probs).sum(), logits)
    reverse = [0.346243, -0.220389, -0.125854]
    assert (gradient.tolist() == pytest.approx(reverse, abs=1e-6)) is exact


def test_without_a_coefficient_there_is_no_divergence(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([0.0], [[1]])
    assert reward_kl(batch, arguments("ppo")) == {}
    assert "kl" not in batch


def test_worked_values_of_reinforce_pp(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, -1.0], MASKS, kl=KL)
    args = arguments("reinforce_pp", kl_coef=0.1, gamma=0.99, gae_masking="all")
    token_returns(batch, args)
    assert batch["advantages"][0].tolist() == pytest.approx([0.948626, 0.963259, 0.98309, 0.99302, 0.998], abs=2e-6)
    assert batch["returns"][1].tolist() == pytest.approx([-1.0, -1.0, -0.0], abs=2e-6)


def test_reinforce_pp_is_whitened_over_the_rollout(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, -1.0, float("nan")], [[1, 1, 0, 1], [1, 1], [0, 0]])
    metrics = pipeline("reinforce_pp", batch, arguments("reinforce_pp"))
    assert metrics["whitening_mean"] == pytest.approx(0.2)
    assert metrics["advantage_mean"] == pytest.approx(0.0, abs=1e-6)
    first, second, _ = batch["advantages"]
    assert first[0].item() == pytest.approx(0.8 / 1.2**0.5, abs=2e-6)
    assert second.tolist() == pytest.approx([-1.2 / 1.2**0.5] * 2, abs=2e-6)


def test_worked_values_of_the_baseline(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 0.0, 0.0, 1.0], [[1] * 2, [1] * 3, [1], [1] * 2])
    metrics = pipeline("reinforce_pp_baseline", batch, arguments("reinforce_pp_baseline"))
    expected = [0.935414, -0.935414, -0.935414, 0.935414]
    assert [row[0].item() for row in batch["advantages"]] == pytest.approx(expected, abs=2e-6)
    assert metrics["whitening_std"] ** 2 == pytest.approx(0.285714, abs=2e-6)


def test_the_baseline_takes_the_divergence_of_each_token(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([1.0, 0.0], [[1, 1], [1]], kl=[[0.1, -0.2], [0.3]])
    metrics = centred_advantages(batch, arguments("reinforce_pp_baseline", kl_coef=0.5))
    assert torch.cat(batch["advantages"]).tolist() == pytest.approx([0.45, 0.6, -0.65], abs=2e-6)
    assert metrics["advantage_abs_max"] == pytest.approx(0.65)


def test_both_roles_of_ppo_compute_the_same_returns(whole_batch: Any, arguments: Any) -> None:
    """The critic keeps them when the policy whitens its advantages."""
    args = arguments("ppo", kl_coef=0.1, gamma=0.99, lambd=0.95, normalize_advantages=True)
    keys = {"log_probs": OLD, "ref_log_probs": REF, "values": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7]]}
    batch = whole_batch([1.0, 0.0], [[1, 1, 1], [1, 0, 1, 1]], **keys)
    policy, critic = dict(batch), dict(batch)
    pipeline("ppo", policy, args)
    metrics = pipeline("ppo", critic, args, role=1)
    assert all(torch.equal(a, b) for a, b in zip(policy["returns"], critic["returns"], strict=True))
    for advantages, returns, values in zip(critic["advantages"], critic["returns"], batch["values"], strict=True):
        torch.testing.assert_close(returns, (advantages + values) * (returns != 0))
    assert "advantages" not in batch
    assert set(metrics) >= {"return_mean", "reward_mean", "reward_kl_mean"}


@pytest.mark.parametrize(("cut", "asked", "expected"), [(1, True, 0.5), (0, True, 0.0), (1, False, 0.0)])
def test_only_cut_responses_are_valued_beyond_their_end(
    whole_batch: Any, arguments: Any, cut: int, asked: bool, expected: float
) -> None:
    batch = whole_batch([0.0], [[1, 1]], values=[[0.25, 0.5]], truncated=[cut])
    gae(batch, arguments("ppo", gae_bootstrap_truncated=asked))
    assert batch["returns"][0].tolist() == [expected, expected]


@pytest.mark.parametrize(("recipe", "stage"), [("reinforce_pp", token_returns), ("ppo", gae)])
def test_a_trained_reward_that_is_no_number_is_refused(
    whole_batch: Any, arguments: Any, recipe: str, stage: Any
) -> None:
    batch = whole_batch([1.0, float("nan")], [[1], [1]], values=[[0.0], [0.0]])
    with pytest.raises(NonFiniteError, match="sample 1 is nan"):
        stage(batch, arguments(recipe))


@pytest.mark.parametrize(("recipe", "stage"), [("reinforce_pp", token_returns), ("ppo", gae)])
def test_an_empty_response_has_neither_advantage_nor_return(
    whole_batch: Any, arguments: Any, recipe: str, stage: Any
) -> None:
    batch = whole_batch([4.0, 1.0], [[0, 0, 0], [1, 1, 1]], values=[[0.0] * 3, [0.0] * 3])
    metrics = stage(batch, arguments(recipe))
    assert [row.tolist() for row in batch["returns"]] == [[0.0] * 3, [1.0] * 3]
    assert [row.tolist() for row in batch["advantages"]] == [[0.0] * 3, [1.0] * 3]
    assert metrics["reward_mean"] == 1.0


def test_worked_values_of_batch_normalised_weights(whole_batch: Any, arguments: Any) -> None:
    """Advantages of 1, divided by the mean weight, times the weights, are the normalised weights."""
    ones = [[1.0] * 3, [1.0] * 4]
    batch = whole_batch([0.0, 0.0], [[1, 1, 1], [1, 0, 1, 1]], log_probs=OLD, rollout_log_probs=ENGINE, advantages=ones)
    metrics = normalize_importance(batch, arguments(use_tis=True, tis_batch_normalize=True))
    assert metrics["tis_batch_mean"] == pytest.approx(1.069498, abs=2e-6)
    raw = [[1.020201, 0.951229, 0.951229], [1.051271, 1.105171, 1.491825, 0.951229]]
    found = [(a * torch.tensor(w)).tolist() for a, w in zip(batch["advantages"], raw, strict=True)]
    assert found[0] == pytest.approx([0.953907, 0.889417, 0.889417], abs=2e-6)
    assert [found[1][i] for i in (0, 2, 3)] == pytest.approx([0.982958, 1.394884, 0.889417], abs=2e-6)


def test_weights_that_are_all_zero_are_not_divided(whole_batch: Any, arguments: Any) -> None:
    batch = whole_batch([0.0], [[1]], log_probs=[[0.0]], rollout_log_probs=[[-3.0]], advantages=[[2.0]])
    args = arguments(use_tis=True, tis_mode="mask", tis_batch_normalize=True)
    assert normalize_importance(batch, args) == {"tis_batch_mean": 0.0}
    assert batch["advantages"][0].tolist() == [2.0]
