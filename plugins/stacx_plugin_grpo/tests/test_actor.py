"""The actor's loss on packed logits: its terms, its metrics, and what must not change it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import TRAINING_CONFIGS, Args
from stacx_core.config import resolve_object
from stacx_core.objectives import Aggregation, make_reducer
from stacx_plugin_grpo.specialization import ActorSpecialization

NEW = [[-0.5, -1.2, -0.3], [-0.9, -2.0, -0.7, -1.1]]
OLD = [[-0.6, -1.0, -0.35], [-0.8, -2.0, -1.0, -1.05]]
ENGINE = [[-0.62, -0.95, -0.3], [-0.85, -2.1, -1.4, -1.0]]
REF = [[-0.55, -1.1, -0.4], [-1.0, -1.9, -0.8, -0.9]]
ADVANTAGES = [[0.8] * 3, [-0.5] * 4]
MASKS = [[1, 1, 1], [1, 0, 1, 1]]
PROMPTS = [1, 2]
VOCABULARY = 6


@pytest.fixture(name="arguments")
def actor_arguments(arguments: Any) -> Any:
    """Log-probs in chunks of three, and DAPO's upper clip, beside what a test asks for."""

    def build(recipe: str = "grpo", **given: Any) -> Args:
        return arguments(recipe, **{"log_probs_chunk_size": 3, "eps_clip_high": 0.28} | given)

    return build


def two_samples(dtype: torch.dtype = torch.float64, **keys: list[list[float]]) -> tuple[list[Tensor], Any]:
    """Logits of each sample, whose softmax gives the tokens exactly the log-probs NEW, and the batch."""
    logits, tokens = [], []
    for prompt, wanted in zip(PROMPTS, NEW, strict=True):
        ids = [(3 * i + 1) % VOCABULARY for i in range(prompt + len(wanted))]
        rows = torch.zeros(len(ids), VOCABULARY, dtype=torch.float64)
        for t, log_prob in enumerate(wanted):
            probability = torch.tensor(log_prob, dtype=torch.float64).exp()
            rows[prompt + t - 1] = ((1 - probability) / (VOCABULARY - 1)).log()
            rows[prompt + t - 1, ids[prompt + t]] = log_prob
        logits.append(rows.to(dtype))
        tokens.append(torch.tensor(ids))
    given = {"log_probs": OLD, "advantages": ADVANTAGES, **keys}
    batch = {
        "tokens": tokens,
        "total_lengths": [len(ids) for ids in tokens],
        "response_lengths": [len(mask) for mask in MASKS],
        "loss_masks": [torch.tensor(mask, dtype=torch.int32) for mask in MASKS],
        **{key: [torch.tensor(values, dtype=dtype) for values in rows] for key, rows in given.items()},
    }
    return logits, batch


def run(
    args: Args,
    logits: list[Tensor],
    batch: dict[str, Any],
    indices: list[int],
    mode: Aggregation = Aggregation.SAMPLE_MEAN,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Numerator, metrics and gradient of the packed micro-batch of the samples at ``indices``."""
    part: dict[str, Any] = {key: [value[i] for i in indices] for key, value in batch.items()}
    part["tokens"] = torch.cat(part["tokens"])[None]
    packed = torch.cat([logits[i] for i in indices]).requires_grad_()
    reducer = make_reducer(mode, part["response_lengths"], part["loss_masks"])
    actor = resolve_object(TRAINING_CONFIGS[args.algorithm].roles[0].specialization_cls)(args)
    loss, metrics = actor.compute_loss(packed, part, reducer)
    (gradient,) = torch.autograd.grad(loss, packed)
    return loss.detach(), metrics, gradient


def quotient(pair: Tensor) -> float:
    return (pair[0] / pair[1]).item()


def test_worked_value_of_the_policy_term(arguments: Any) -> None:
    loss, metrics, _ = run(arguments(), *two_samples(), [0, 1])
    assert loss.item() == pytest.approx(-0.259058, abs=2e-6)
    assert metrics["pg_loss"].item() == pytest.approx(-0.259058, abs=2e-6)
    assert quotient(metrics["clipfrac"]) == 0.0
    assert metrics["ppo_kl"].tolist() == pytest.approx([-0.1 + 0.2 - 0.05 + 0.1 - 0.3 + 0.05, 6.0], abs=2e-6)
    assert quotient(metrics["ratio_mean"]) == pytest.approx(
        (1.105171 + 0.818731 + 1.051271 + 0.904837 + 1.349859 + 0.951229) / 6, abs=2e-6
    )


def test_fp32_logits_give_the_worked_value_too(arguments: Any) -> None:
    loss, _, _ = run(arguments(), *two_samples(torch.float32), [0, 1])
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-0.259058, abs=2e-6)


def test_the_terms_add_up_to_the_loss(arguments: Any) -> None:
    args = arguments(entropy_coef=0.01, use_kl_loss=True, kl_loss_coef=0.001)
    loss, metrics, _ = run(args, *two_samples(ref_log_probs=REF), [0, 1])
    terms = metrics["pg_loss"] + 0.01 * metrics["entropy_loss"] + 0.001 * metrics["kl_loss"]
    torch.testing.assert_close(loss, terms)
    assert metrics["kl_loss"].item() == pytest.approx(0.014105, abs=2e-6)


@pytest.mark.parametrize(("kind", "unbiased", "expected"), [("k2", False, 0.01375), ("k3", True, 0.013981)])
def test_worked_values_of_the_kl_term(arguments: Any, kind: str, unbiased: bool, expected: float) -> None:
    args = arguments(use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type=kind, use_unbiased_kl=unbiased)
    loss, metrics, _ = run(args, *two_samples(ref_log_probs=REF), [0, 1])
    assert metrics["kl_loss"].item() == pytest.approx(expected, abs=2e-6)
    assert loss.item() == pytest.approx(-0.259058 + expected, abs=4e-6)


def test_reinforce_pp_baseline_takes_k2_in_the_loss_unless_told(arguments: Any) -> None:
    given = {"use_kl_loss": True, "kl_loss_coef": 1.0, "eps_clip_high": 0.28}
    for more, expected in (({}, 0.01375), ({"kl_loss_type": "low_var_kl"}, 0.014105)):
        args = arguments("reinforce_pp_baseline", **given, **more)
        _, metrics, _ = run(args, *two_samples(ref_log_probs=REF), [0, 1])
        assert metrics["kl_loss"].item() == pytest.approx(expected, abs=2e-6)


def test_a_flat_group_still_feels_the_kl_term(arguments: Any) -> None:
    """One token with log-prob -1 against -1.5 and advantage 0: only 0.1 times k3 is left."""
    logits, batch = two_samples(advantages=[[0.0] * 3, [0.0] * 4], ref_log_probs=[[-1.0, -1.7, -0.8], REF[1]])
    args = arguments(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3")
    loss, metrics, _ = run(args, logits, batch, [0])
    assert metrics["pg_loss"].item() == 0.0
    assert loss.item() == pytest.approx(0.010653, abs=2e-6)


def test_entropy_is_measured_and_pushed_only_if_asked(arguments: Any) -> None:
    logits, batch = two_samples()
    _, metrics, without = run(arguments(), logits, batch, [0, 1])
    loss, with_bonus, gradient = run(arguments(entropy_coef=0.5), logits, batch, [0, 1])
    assert quotient(metrics["entropy"]) == quotient(with_bonus["entropy"]) > 0
    assert "entropy_loss" not in metrics
    assert loss.item() == pytest.approx(-0.259058 + 0.5 * with_bonus["entropy_loss"].item(), abs=4e-6)
    assert not torch.allclose(gradient, without)


def test_worked_values_of_truncated_importance_sampling(arguments: Any) -> None:
    args = arguments(use_tis=True, tis_clip=1.3)
    loss, metrics, _ = run(args, *two_samples(rollout_log_probs=ENGINE), [0, 1])
    assert loss.item() == pytest.approx(-0.173199, abs=2e-6)
    assert metrics["tis_clipfrac"].tolist() == [1.0, 6.0]


def test_the_engine_is_measured_wherever_its_log_probs_are_known(arguments: Any) -> None:
    _, metrics, _ = run(arguments(), *two_samples(rollout_log_probs=ENGINE), [0, 1])
    weights = [1.020201, 0.951229, 0.951229, 1.051271, 1.491825, 0.951229]
    assert quotient(metrics["train_rollout_ratio"]) == pytest.approx(sum(weights) / 6, abs=2e-6)
    assert quotient(metrics["train_rollout_abs_diff"]) == pytest.approx(0.62 / 6, abs=2e-6)
    assert "tis_clipfrac" not in metrics


def test_rollout_log_probs_can_take_the_place_of_the_old_ones(arguments: Any) -> None:
    args = arguments(use_rollout_logprobs=True)
    logits, batch = two_samples(rollout_log_probs=ENGINE)
    loss, metrics, _ = run(args, logits, batch, [0, 1])
    as_old, _, _ = run(arguments(), *two_samples(log_probs=ENGINE), [0, 1])
    assert loss.item() == as_old.item()
    assert quotient(metrics["train_rollout_abs_diff"]) == pytest.approx(0.62 / 6, abs=2e-6)


def test_without_old_log_probs_the_ratio_is_one_and_the_gradient_that_of_reinforce(arguments: Any) -> None:
    logits, batch = two_samples()
    del batch["log_probs"]
    loss, metrics, gradient = run(arguments(), logits, batch, [0, 1])
    _, _, at_old = run(arguments(), *two_samples(log_probs=NEW), [0, 1])
    assert loss.item() == pytest.approx(-0.8 + 0.5, abs=2e-6)
    assert quotient(metrics["ratio_mean"]) == 1.0
    assert [metrics[key][0].item() for key in ("clipfrac", "dual_clipfrac", "ppo_kl")] == [0.0] * 3
    torch.testing.assert_close(gradient, at_old)


def test_the_sampling_temperature_divides_the_logits(arguments: Any) -> None:
    """Logits (2, 1, 0) at temperature 1/2: the token's log-prob is -0.142932, and the ratio to it is 1."""
    batch: dict[str, Any] = {
        "tokens": torch.tensor([[2, 0]]),
        "total_lengths": [2],
        "response_lengths": [1],
        "loss_masks": [torch.tensor([1])],
        "log_probs": [torch.tensor([-0.142932])],
        "advantages": [torch.tensor([1.0])],
    }
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    reducer = make_reducer("sample_mean", [1], batch["loss_masks"])
    actor = ActorSpecialization(arguments(rollout_temperature=0.5))
    loss, metrics = actor.compute_loss(logits, batch, reducer)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert quotient(metrics["ratio_mean"]) == pytest.approx(1.0, abs=2e-6)
    assert gradient[0].tolist() == pytest.approx([-0.266373, 0.234621, 0.031752], abs=2e-6)


EVERYTHING = {
    "use_tis": True,
    "tis_clip": 1.3,
    "use_rs": True,
    "rs_level": "geometric",
    "rs_veto_threshold": 0.5,
    "use_opsm": True,
    "opsm_delta": 0.0,
    "entropy_coef": 0.01,
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "use_unbiased_kl": True,
}
EVERY_TERM = [("grpo", {**EVERYTHING, "eps_clip_c": 3.0}), ("gspo", EVERYTHING), ("cispo", EVERYTHING)]


@pytest.mark.parametrize(("recipe", "terms"), EVERY_TERM)
@pytest.mark.parametrize("mode", list(Aggregation))
@pytest.mark.parametrize("indices", [[[0], [1]], [[1, 0]]], ids=["one by one", "other order"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_micro_batches_and_order_change_neither_loss_nor_gradient(
    arguments: Any,
    recipe: str,
    terms: dict[str, Any],
    mode: Aggregation,
    indices: list[list[int]],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    args = arguments(recipe, **terms)
    logits, batch = two_samples(dtype, ref_log_probs=REF, rollout_log_probs=ENGINE)
    whole, whole_metrics, whole_gradient = run(args, logits, batch, [0, 1], mode)
    pieces = [run(args, logits, batch, part, mode) for part in indices]
    rows = {
        i: piece
        for part, (_, _, gradient) in zip(indices, pieces, strict=True)
        for i, piece in zip(part, gradient.split([len(logits[i]) for i in part]), strict=True)
    }
    torch.testing.assert_close(sum(loss for loss, _, _ in pieces), whole, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(torch.cat([rows[0], rows[1]]), whole_gradient, rtol=tolerance, atol=tolerance)
    for name, value in whole_metrics.items():
        total = sum(metrics[name] for _, metrics, _ in pieces)
        torch.testing.assert_close(total, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("recipe", "terms"), EVERY_TERM)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("key", ["log_probs", "ref_log_probs", "rollout_log_probs", "advantages", "logits"])
def test_a_poisoned_masked_slot_changes_nothing(
    arguments: Any, recipe: str, terms: dict[str, Any], key: str, poison: float
) -> None:
    args = arguments(recipe, **terms)
    logits, batch = two_samples(ref_log_probs=REF, rollout_log_probs=ENGINE)
    clean = run(args, logits, batch, [0, 1])
    if key == "logits":
        logits[1][PROMPTS[1]] = poison
    else:
        batch[key][1][1] = poison
    dirty = run(args, logits, batch, [0, 1])
    assert torch.equal(dirty[0], clean[0])
    assert torch.equal(dirty[2], clean[2])
    assert all(torch.equal(dirty[1][name], value) for name, value in clean[1].items())


def test_a_nan_in_a_trained_slot_reaches_the_loss(arguments: Any) -> None:
    logits, batch = two_samples()
    batch["log_probs"][1][0] = float("nan")
    assert run(arguments(), logits, batch, [0, 1])[0].isnan()


@pytest.mark.parametrize(("recipe", "terms"), EVERY_TERM)
def test_a_micro_batch_without_trained_tokens_keeps_the_graph(
    arguments: Any, recipe: str, terms: dict[str, Any]
) -> None:
    logits, batch = two_samples(ref_log_probs=REF, rollout_log_probs=ENGINE)
    batch["loss_masks"] = [torch.zeros_like(mask) for mask in batch["loss_masks"]]
    loss, metrics, gradient = run(arguments(recipe, **terms), logits, batch, [0, 1])
    assert loss.item() == 0.0
    assert not gradient.any()
    assert metrics["ratio_mean"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("recipe", "expected"), [("gspo", -0.261142), ("cispo", 0.034001)])
def test_worked_values_of_the_other_actors(arguments: Any, recipe: str, expected: float) -> None:
    bounds = {"eps_clip": 3e-4, "eps_clip_high": 4e-4} if recipe == "gspo" else {}
    loss, metrics, _ = run(arguments(recipe, **bounds), *two_samples(), [0, 1])
    assert loss.item() == pytest.approx(expected, abs=2e-6)
    share = metrics["clipfrac"] if recipe == "gspo" else metrics["cispo_clipfrac"]
    assert share.tolist() == [0.0 if recipe == "gspo" else 1.0, 6.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"use_tis": True, "tis_clip": 1.3, "tis_clip_low": 0.95, "tis_mode": "mask"}, -0.465668),
        ({"use_tis": True, "use_rs": True, "rs_upper_bound": 1.3, "rs_lower_bound": 0.5}, -0.465668),
        (
            {"use_tis": True, "use_rs": True, "rs_level": "geometric", "rs_upper_bound": 1.1, "rs_lower_bound": 0.95},
            -0.775013,
        ),
    ],
    ids=["icepop", "token rejection", "geometric mask with token weights"],
)
def test_worked_values_of_the_corrections(arguments: Any, settings: dict[str, Any], expected: float) -> None:
    loss, _, _ = run(arguments(**settings), *two_samples(rollout_log_probs=ENGINE), [0, 1])
    assert loss.item() == pytest.approx(expected, abs=2e-6)


def test_rejection_is_measured_and_leaves_other_metrics_alone(arguments: Any) -> None:
    args = arguments(use_rs=True, rs_upper_bound=1.3, rs_lower_bound=0.5, rs_veto_threshold=0.96)
    batch = two_samples(rollout_log_probs=ENGINE)
    _, metrics, _ = run(args, *batch, [0, 1])
    assert metrics["rs_frac"].tolist() == [1.0, 6.0]
    assert metrics["veto_frac"].tolist() == [2.0, 2.0]
    assert metrics["pg_loss"].item() == 0.0
    _, before, _ = run(arguments(), *batch, [0, 1])
    assert torch.equal(metrics["train_rollout_ratio"], before["train_rollout_ratio"])
    assert torch.equal(metrics["ppo_kl"], before["ppo_kl"])


def test_off_policy_masking_takes_whole_sequences(arguments: Any) -> None:
    loss, metrics, _ = run(arguments(use_opsm=True, opsm_delta=-0.1), *two_samples(), [0, 1])
    assert metrics["opsm_frac"].tolist() == [1.0, 2.0]
    assert loss.item() == pytest.approx((-0.884137 - 0.654985 - 0.841017) / 3, abs=2e-6)


def test_the_effective_sample_size_is_a_mean_over_sequences(arguments: Any) -> None:
    _, metrics, _ = run(arguments(), *two_samples(), [0, 1])
    assert metrics["ess"].tolist() == pytest.approx([0.984536 + 0.966241, 2.0], abs=2e-6)
