"""The four aggregations: worked values, invariance to cutting and order, masked slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stacx_core.objectives import Aggregation, make_reducer, mean_over, sum_of_sample_mean, where_masked

NEGATIVE_LOG_PROBS = torch.tensor([0.5, 1.2, 0.3, 0.9, 2.0, 0.7, 1.1])
LENGTHS = [3, 4]
MASKS = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]


@dataclass
class Rows:
    """Samples of a step: ``values[i]`` is [R_i], ``masks[i]`` its loss mask, ``denominators[i]`` its D_i."""

    values: list[Tensor]
    masks: list[Tensor]
    denominators: list[int]

    def pick(self, indices: Sequence[int]) -> Rows:
        return Rows(
            [self.values[i] for i in indices],
            [self.masks[i] for i in indices],
            [self.denominators[i] for i in indices],
        )

    def numerator(self, mode: Aggregation) -> Tensor:
        lengths = [len(value) for value in self.values]
        flat = torch.cat([torch.zeros(0, dtype=torch.float64), *self.values])
        return make_reducer(mode, lengths, self.masks, self.denominators)(flat)


def step_loss(mode: Aggregation, rows: Rows, rollouts: int, max_len: int = 8) -> Tensor:
    tokens = sum(int(mask.sum()) for mask in rows.masks)
    return rows.numerator(mode) / mode.normalizer(rollouts, tokens, max_len)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sample_mean", 0.783333),
        ("token_mean", 0.783333),
        ("seq_mean_token_sum", 2.35),
        ("constant", 0.29375),
    ],
)
def test_worked_values_of_the_four_aggregations(mode: str, expected: float) -> None:
    aggregation = Aggregation(mode)
    numerator = make_reducer(mode, LENGTHS, MASKS)(NEGATIVE_LOG_PROBS)
    loss = numerator / aggregation.normalizer(num_rollouts=2, num_tokens=6, max_response_len=8)
    assert loss.item() == pytest.approx(expected, abs=2e-6)


def test_sum_of_sample_mean_adds_the_means_of_the_samples() -> None:
    assert sum_of_sample_mean(NEGATIVE_LOG_PROBS, LENGTHS, MASKS).item() == pytest.approx(1.566667, abs=2e-6)


def test_sum_of_sample_mean_per_token_adds_the_tokens() -> None:
    total = sum_of_sample_mean(NEGATIVE_LOG_PROBS, LENGTHS, MASKS, per_token=True)
    assert total.item() == pytest.approx(4.7, abs=2e-6)


def test_siblings_of_one_rollout_share_its_denominator() -> None:
    loss = sum_of_sample_mean(NEGATIVE_LOG_PROBS, LENGTHS, MASKS, denominators=[6, 6])
    assert loss.item() == pytest.approx(0.783333, abs=2e-6)


@pytest.mark.parametrize(("mode", "expected"), [("sample_mean", 0.522222), ("token_mean", 0.783333)])
def test_empty_sample_adds_nothing_but_counts_as_a_rollout(mode: str, expected: float) -> None:
    x = torch.cat([NEGATIVE_LOG_PROBS, torch.tensor([9.0, 9.0])])
    numerator = make_reducer(mode, [*LENGTHS, 2], [*MASKS, torch.tensor([0, 0])])(x)
    loss = numerator / Aggregation(mode).normalizer(num_rollouts=3, num_tokens=6)
    assert loss.item() == pytest.approx(expected, abs=2e-6)


def four_rows() -> Rows:
    values = [[4.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [0.0, 6.0]]
    lengths = [len(value) for value in values]
    return Rows(
        [torch.tensor(value, dtype=torch.float64) for value in values],
        [torch.ones(length) for length in lengths],
        lengths,
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Aggregation.TOKEN_MEAN, 2.1),
        (Aggregation.SAMPLE_MEAN, 2.5),
        (Aggregation.SEQ_MEAN_TOKEN_SUM, 5.25),
        (Aggregation.CONSTANT, 0.65625),
    ],
)
@pytest.mark.parametrize("cut", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3], [1], [0], [2]], [[0, 1, 2], [], [3]]], ids=str)
def test_micro_batches_add_up_to_the_named_mean(mode: Aggregation, expected: float, cut: list[list[int]]) -> None:
    rows = four_rows()
    numerator = sum((rows.pick(part).numerator(mode) for part in cut), torch.zeros(()))
    assert (numerator / mode.normalizer(4, 10, 8)).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_gradient_does_not_depend_on_accumulation(accumulation: int) -> None:
    """Eight tokens whose loss is the weight itself: the token mean has slope 1 however it is accumulated."""
    weight = torch.tensor(1.0, requires_grad=True)
    tokens = 8 // accumulation
    for _ in range(accumulation):
        reducer = make_reducer("token_mean", [tokens], [torch.ones(tokens)])
        (reducer(weight.expand(tokens)) / Aggregation.TOKEN_MEAN.normalizer(1, 8)).backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(1.0, abs=1e-7)


def test_each_optimiser_step_is_normalised_by_its_own_tokens() -> None:
    """One rollout batch of 8 tokens in two optimiser steps: each step's slope is 1, not 1/2."""
    for _ in range(2):
        weight = torch.tensor(1.0, requires_grad=True)
        for _ in range(2):
            reducer = make_reducer("token_mean", [2], [torch.ones(2)])
            (reducer(weight.expand(2)) / Aggregation.TOKEN_MEAN.normalizer(1, 4)).backward()
        assert weight.grad is not None
        assert weight.grad.item() == pytest.approx(1.0, abs=1e-7)


def test_a_masked_truncated_row_leaves_numerator_and_denominator() -> None:
    x = torch.tensor([0.5] * 4 + [9.0] * 6)
    masks = [torch.ones(4, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)]
    numerator = make_reducer("token_mean", [4, 6], masks)(x)
    assert (numerator / Aggregation.TOKEN_MEAN.normalizer(2, num_tokens=4)).item() == pytest.approx(0.5)


@pytest.mark.parametrize("mode", list(Aggregation))
def test_a_step_without_trainable_tokens_is_zero_with_zero_gradient(mode: Aggregation) -> None:
    x = torch.tensor([9.0] * 6, requires_grad=True)
    loss = make_reducer(mode, [6], [torch.zeros(6)])(x) / mode.normalizer(1, 0, 8)
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad is not None
    assert x.grad.tolist() == [0.0] * 6


@pytest.mark.parametrize("mode", list(Aggregation))
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
def test_masked_slots_change_neither_loss_nor_gradient(mode: Aggregation, poison: float) -> None:
    clean = NEGATIVE_LOG_PROBS.clone().requires_grad_()
    dirty = torch.where(torch.tensor([0, 0, 0, 0, 1, 0, 0]).bool(), poison, NEGATIVE_LOG_PROBS)
    dirty.requires_grad_()
    losses = [make_reducer(mode, LENGTHS, MASKS)(x) for x in (clean, dirty)]
    for loss in losses:
        loss.backward()
    assert torch.equal(losses[0], losses[1])
    assert clean.grad is not None
    assert dirty.grad is not None
    assert torch.equal(clean.grad, dirty.grad)
    assert dirty.grad[4].item() == 0.0


def test_a_nan_in_a_trainable_slot_is_not_hidden() -> None:
    x = torch.tensor([0.5, float("nan")])
    assert sum_of_sample_mean(x, [2], [torch.ones(2)]).isnan()


def test_where_masked_stops_the_gradient_of_a_masked_infinity() -> None:
    x = torch.tensor([0.0, 100.0], requires_grad=True)
    where_masked(x, torch.tensor([1, 0])).exp().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_accumulation_dtype(given_dtype: torch.dtype, expected: torch.dtype) -> None:
    assert sum_of_sample_mean(torch.ones(2, dtype=given_dtype), [2], [torch.ones(2)]).dtype == expected


def test_many_bf16_tokens_do_not_lose_the_small_ones() -> None:
    x = torch.ones(1000, dtype=torch.bfloat16)
    assert sum_of_sample_mean(x, [1000], [torch.ones(1000)], per_token=True).item() == 1000.0


def test_an_already_reduced_loss_passes_in_sample_mean_only() -> None:
    reduced = torch.tensor(1.5)
    assert make_reducer("sample_mean", LENGTHS, MASKS)(reduced) is reduced
    with pytest.raises(ValueError, match=r"return the 1-d vector of length 7, or use .* 'sample_mean'"):
        make_reducer("token_mean", LENGTHS, MASKS)(reduced)


@pytest.mark.parametrize("shape", [(6,), (1, 7), (8,)])
def test_a_wrong_shape_names_both_lengths(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[7\].*got shape \[" + ", ".join(map(str, shape))):
        make_reducer("sample_mean", LENGTHS, MASKS)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_masks": [torch.ones(3), torch.ones(3)]}, r"loss_masks have lengths \[3, 3\]"),
        ({"denominators": [3]}, "got 1 for 2 samples"),
    ],
)
def test_disagreeing_lengths_are_refused(arguments: dict[str, Any], message: str) -> None:
    keywords = {"response_lengths": LENGTHS, "loss_masks": MASKS, **arguments}
    with pytest.raises(ValueError, match=message):
        sum_of_sample_mean(NEGATIVE_LOG_PROBS, **keywords)


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="token_meen"):
        make_reducer("token_meen", LENGTHS, MASKS)


@pytest.mark.parametrize("limit", [None, 0])
def test_constant_needs_the_longest_response(limit: int | None) -> None:
    with pytest.raises(ValueError, match="set rollout_max_response_len"):
        Aggregation.CONSTANT.normalizer(2, 6, limit)


def test_every_aggregation_has_a_formula() -> None:
    assert all("x m" in mode.formula for mode in Aggregation)


@st.composite
def rows_of_one_step(draw: st.DrawFn) -> Rows:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    number = st.floats(-10, 10)
    values = [draw(st.lists(number, min_size=n, max_size=n)) for n in lengths]
    masks = [draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in lengths]
    return Rows(
        [torch.tensor(value, dtype=torch.float64) for value in values],
        [torch.tensor(mask, dtype=torch.int32) for mask in masks],
        [sum(mask) for mask in masks],
    )


@settings(deadline=None)
@given(rows=rows_of_one_step(), mode=st.sampled_from(Aggregation), data=st.data())
def test_any_order_and_any_cut_into_micro_batches_gives_one_loss(
    rows: Rows, mode: Aggregation, data: st.DataObject
) -> None:
    count = len(rows.values)
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.sets(st.integers(0, count))))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    pieces = sum((rows.pick(part).numerator(mode) for part in parts), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(pieces, rows.numerator(mode), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(rows=rows_of_one_step(), mode=st.sampled_from(Aggregation), data=st.data())
def test_cutting_one_rollout_into_siblings_gives_one_loss(rows: Rows, mode: Aggregation, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows.values) - 1))
    at = data.draw(st.integers(0, len(rows.values[index])))
    split = Rows([], [], [])
    for i, (value, mask, denominator) in enumerate(zip(rows.values, rows.masks, rows.denominators, strict=True)):
        for piece in (slice(0, at), slice(at, None)) if i == index else (slice(None),):
            split.values.append(value[piece])
            split.masks.append(mask[piece])
            split.denominators.append(denominator)
    rollouts = len(rows.values)
    torch.testing.assert_close(
        step_loss(mode, split, rollouts), step_loss(mode, rows, rollouts), rtol=1e-12, atol=1e-12
    )


def test_a_mean_over_what_counts_is_a_sum_and_a_count() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0], requires_grad=True)
    pair = mean_over(values, torch.tensor([True, False, True]))
    assert (pair.tolist(), pair.dtype, pair.requires_grad) == ([4.0, 2.0], torch.float64, False)
    assert mean_over(values, torch.zeros(3, dtype=torch.bool)).tolist() == [0.0, 0.0]
