"""The policy's loss on packed logits: pairs found by their ids, whatever the cut, the order or the masked tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stacx_core import Args, BatchError
from stacx_core.objectives import make_reducer
from stacx_plugin_preference.knobs import DPO_KNOBS, LOSS_TYPES, PAIRED
from stacx_plugin_preference.specialization import PAIR_LOSSES, PreferenceSpecialization

NEW = [[-0.5, -1.2, -0.3], [-0.9, -2.0, -0.7, -1.1]]
REF = [[-0.55, -1.1, -0.4], [-1.0, -1.9, -0.8, -0.9]]
MASKS = [[1, 1, 1], [1, 0, 1, 1]]
VOCABULARY = 6
CHOSEN, REJECTED = 0, 1


def arguments(**values: Any) -> Args:
    defaults = {knob.name: knob.default for knob in DPO_KNOBS}
    return Args.of(**defaults | {"rollout_temperature": 1.0, "log_probs_chunk_size": 3} | values)


def rows_of(log_probs: Sequence[float], ids: Sequence[int], prompt: int) -> Tensor:
    """Logits ``[L, V]`` whose softmax gives each response token of ``ids`` exactly its log-prob."""
    rows = torch.zeros(len(ids), VOCABULARY, dtype=torch.float64)
    for t, log_prob in enumerate(log_probs):
        rest = math.log((1 - math.exp(log_prob)) / (VOCABULARY - 1))
        rows[prompt + t - 1] = rest
        rows[prompt + t - 1, ids[prompt + t]] = log_prob
    return rows


def batch_of(
    new: Sequence[Sequence[float]] = NEW,
    ref: Sequence[Sequence[float]] = REF,
    masks: Sequence[Sequence[int]] = MASKS,
    dtype: torch.dtype = torch.float64,
    **keys: Any,
) -> tuple[list[Tensor], dict[str, Any]]:
    """Logits of each sample and the batch; samples 0 and 1 are a pair, 2 and 3 the next."""
    tokens = [torch.tensor([(3 * t + 1) % VOCABULARY for t in range(2 + len(values))]) for values in new]
    logits = [rows_of(values, ids.tolist(), 2).to(dtype) for values, ids in zip(new, tokens, strict=True)]
    return logits, {
        "tokens": tokens,
        "total_lengths": [len(ids) for ids in tokens],
        "response_lengths": [len(mask) for mask in masks],
        "loss_masks": [torch.tensor(mask, dtype=torch.int32) for mask in masks],
        "ref_log_probs": [torch.tensor(values, dtype=dtype) for values in ref],
        "pair_ids": [i // 2 for i in range(len(new))],
        "is_chosen": [i % 2 == 0 for i in range(len(new))],
        **keys,
    }


def run(
    args: Args, logits: Sequence[Tensor], batch: dict[str, Any], positions: Sequence[int]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Numerator, metrics and gradient of the packed micro-batch of the samples at ``positions``."""
    part: dict[str, Any] = {key: [values[i] for i in positions] for key, values in batch.items()}
    part["tokens"] = torch.cat(part["tokens"])[None]
    packed = torch.cat([logits[i] for i in positions]).requires_grad_()
    reducer = make_reducer("sample_mean", part["response_lengths"], part["loss_masks"])
    loss, metrics = PreferenceSpecialization(args).compute_loss(packed, part, reducer)
    (gradient,) = torch.autograd.grad(loss, packed)
    return loss.detach(), metrics, gradient


def quotient(pair: Tensor) -> float:
    return (pair[0] / pair[1]).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, 0.69065),
        ({"dpo_label_smoothing": 0.1}, 0.69115),
        ({"dpo_loss_type": "robust", "dpo_label_smoothing": 0.1}, 0.690025),
        ({"dpo_loss_type": "hinge"}, 0.995),
        ({"dpo_loss_type": "ipo"}, 24.833611),
        ({"dpo_loss_type": "ipo", "ipo_sum": True}, 24.5025),
        ({"dpo_loss_type": "simpo", "dpo_beta": 2.0, "simpo_gamma": 1.0}, 0.994956),
        ({"dpo_loss_type": "orpo", "orpo_lambda": 0.1}, 0.716702),
        ({"dpo_sft_coef": 0.5}, 0.69065 + 0.5 * 2 / 3),
    ],
)
def test_worked_values_of_one_pair(given_: dict[str, Any], expected: float, dtype: torch.dtype) -> None:
    loss, _, _ = run(arguments(**given_), *batch_of(dtype=dtype), [0, 1])
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(expected, abs=2e-6, rel=3e-7)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, 0.420055),
        ({"dpo_label_smoothing": 0.1}, 0.485055),
        ({"dpo_loss_type": "hinge"}, 0.35),
        ({"dpo_loss_type": "ipo"}, 12.25),
        ({"dpo_loss_type": "ipo", "ipo_sum": True}, 2.25),
    ],
)
def test_a_pair_of_unequal_lengths(given_: dict[str, Any], expected: float) -> None:
    """Chosen: sum -6 against -7.5 over 3 tokens; rejected: -20 against -15 over 5."""
    new, ref = [[-2.0] * 3, [-4.0] * 5], [[-2.5] * 3, [-3.0] * 5]
    logits, batch = batch_of(new, ref, [[1] * 3, [1] * 5])
    loss, metrics, _ = run(arguments(**given_), logits, batch, [0, 1])
    assert loss.item() == pytest.approx(expected, abs=2e-6)
    assert quotient(metrics["accuracy"]) == 1.0
    batch["is_chosen"] = [False, True]
    if given_ == {}:
        assert run(arguments(), logits, batch, [0, 1])[0].item() == pytest.approx(1.070055, abs=2e-6)


@pytest.mark.parametrize(("kind", "expected"), [("sigmoid", math.log(2)), ("hinge", 1.0), ("ipo", 25.0)])
def test_before_the_first_update_the_policy_is_its_reference(kind: str, expected: float) -> None:
    logits, batch = batch_of()
    for position in (CHOSEN, REJECTED):
        alone = {key: [values[position]] for key, values in batch.items()}
        alone["tokens"] = batch["tokens"][position][None]
        (batch["ref_log_probs"][position], _) = PreferenceSpecialization(arguments()).response_log_probs(
            logits[position], alone
        )
    loss, metrics, _ = run(arguments(dpo_loss_type=kind), logits, batch, [0, 1])
    assert loss.item() == pytest.approx(expected)
    assert quotient(metrics["accuracy"]) == 0.5


def test_metrics_of_one_pair() -> None:
    _, metrics, _ = run(arguments(), *batch_of(), [0, 1])
    assert {name: quotient(pair) for name, pair in metrics.items()} == pytest.approx(
        {
            "rewards_chosen": 0.005,
            "rewards_rejected": 0.0,
            "margin": 0.005,
            "accuracy": 1.0,
            "logps_chosen": -2.0,
            "logps_rejected": -2.7,
            "dropped_pairs": 0.0,
        },
        abs=2e-6,
    )


def test_kto_of_single_responses() -> None:
    """Log-ratios 0.05 and 0 against the baseline 0.02: both are on their side of it."""
    logits, batch = batch_of(kto_baseline=[0.02, 0.02])
    args = arguments(dpo_loss_type="kto")
    loss, metrics, _ = run(args, logits, batch, [0, 1])
    assert loss.item() == pytest.approx(0.49925 + 0.4995, abs=2e-6)
    assert run(args, logits, batch, [REJECTED])[0].item() == pytest.approx(0.4995, abs=2e-6)
    assert metrics["rewards_chosen"].tolist() == pytest.approx([0.005, 1.0])
    assert metrics["accuracy"].tolist() == [2.0, 2.0]
    means = {name: quotient(pair) for name, pair in metrics.items()}
    assert PreferenceSpecialization(args).summarize(means)["margin"] == pytest.approx(0.005)


def test_every_paired_loss_type_has_a_loss() -> None:
    assert set(PAIR_LOSSES) == set(PAIRED)


@pytest.mark.parametrize("kind", LOSS_TYPES)
def test_masked_tokens_have_no_influence_and_no_gradient(kind: str) -> None:
    args, keys = arguments(dpo_loss_type=kind, dpo_label_smoothing=0.1), {"kto_baseline": [0.02, 0.02]}
    logits, batch = batch_of(**keys)
    loss, metrics, gradient = run(args, logits, batch, [0, 1])
    masked = 5 + 2
    assert torch.equal(gradient[masked], torch.zeros(VOCABULARY, dtype=gradient.dtype))
    assert (gradient[5 + 1] != 0).any()
    spoilt = [logits[0], logits[1].clone()]
    spoilt[1][2] = math.nan
    batch["ref_log_probs"][1][1] = math.inf
    again = run(args, spoilt, batch, [0, 1])
    assert torch.equal(again[0], loss)
    assert torch.equal(again[2], gradient)
    for name, pair in metrics.items():
        assert torch.equal(again[1][name], pair)


LOG_PROBS = st.lists(st.floats(-4, -0.05), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(LOG_PROBS, min_size=6, max_size=6),
    st.sampled_from(PAIRED),
    st.permutations(range(6)),
    st.randoms(use_true_random=False),
)
def test_neither_the_cut_nor_the_order_matters(new: list[list[float]], kind: str, order: list[int], draw: Any) -> None:
    """Three pairs at once, each alone, and shuffled: the same sum and the same gradient."""
    ref = [[draw.uniform(-4, 0) for _ in values] for values in new]
    logits, batch = batch_of(new, ref, [[1] * len(values) for values in new])
    args = arguments(dpo_loss_type=kind, dpo_label_smoothing=0.1)
    whole, metrics, gradient = run(args, logits, batch, range(6))
    parts = [run(args, logits, batch, positions) for positions in ([0, 1], [2, 3], [4, 5])]
    torch.testing.assert_close(sum(part[0] for part in parts), whole)
    torch.testing.assert_close(torch.cat([part[2] for part in parts]), gradient)
    for name, pair in metrics.items():
        torch.testing.assert_close(sum(part[1][name] for part in parts), pair)
    shuffled, _, moved = run(args, logits, batch, order)
    torch.testing.assert_close(shuffled, whole)
    blocks, lengths = dict(zip(order, moved.split([len(logits[i]) for i in order]), strict=True)), range(6)
    torch.testing.assert_close(torch.cat([blocks[i] for i in lengths]), gradient)


@settings(deadline=None, max_examples=40)
@given(LOG_PROBS, LOG_PROBS, st.sampled_from([kind for kind in PAIRED if kind != "orpo"]))
def test_swapping_chosen_and_rejected_flips_the_margin(first: list[float], second: list[float], kind: str) -> None:
    logits, batch = batch_of([first, second], [first[::-1], second], [[1] * len(first), [1] * len(second)])
    args = arguments(dpo_loss_type=kind)
    margin = quotient(run(args, logits, batch, [0, 1])[1]["margin"])
    batch["is_chosen"] = [False, True]
    assert quotient(run(args, logits, batch, [0, 1])[1]["margin"]) == pytest.approx(-margin)


@pytest.mark.parametrize(
    ("pair_ids", "is_chosen", "message"),
    [
        ([7, 8], [True, False], "pair 7 has 1 chosen and 0 rejected samples"),
        ([7, 7], [True, True], "pair 7 has 2 chosen and 0 rejected samples"),
    ],
)
def test_a_broken_pair_is_named(pair_ids: list[int], is_chosen: list[bool], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        run(arguments(), *batch_of(pair_ids=pair_ids, is_chosen=is_chosen), [0, 1])


@pytest.mark.parametrize("kind", LOSS_TYPES)
def test_a_response_without_trained_token_says_nothing(kind: str) -> None:
    """Neither ln 2 nor NaN: such a pair adds nothing and is counted."""
    logits, batch = batch_of(
        [*NEW, *NEW], [*REF, *REF], [*MASKS, [0, 0, 0], MASKS[1]], kto_baseline=[0.02, 0.02, 0.02, 0.02]
    )
    args = arguments(dpo_loss_type=kind, dpo_label_smoothing=0.1)
    alone, single, _ = run(args, logits, batch, [0, 1])
    both, metrics, gradient = run(args, logits, batch, [0, 1, 2, 3])
    if kind == "kto":
        assert metrics["rewards_chosen"].tolist() == single["rewards_chosen"].tolist()
        return
    assert torch.equal(both, alone)
    assert not gradient[11:].any()
    assert metrics["accuracy"].tolist() == single["accuracy"].tolist()
    assert metrics["dropped_pairs"].tolist() == [1.0, 2.0]
