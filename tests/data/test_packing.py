"""Micro-batches and packing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.packing import first_fit, micro_batches, pack
from stacx_core.data.sample import Sample
from stacx_core.errors import BatchError

lengths_lists = st.lists(st.integers(1, 50), max_size=30)


@pytest.mark.parametrize(
    ("lengths", "bins"),
    [
        ([100, 200, 300], [[0, 1], [2]]),
        ([200, 150, 90, 400, 60, 100], [[0, 2], [1, 4], [3], [5]]),
        ([], []),
    ],
)
def test_first_fit(lengths: list[int], bins: list[list[int]]) -> None:
    assert first_fit(lengths, 300) == bins


def test_micro_batches_are_balanced() -> None:
    assert micro_batches([4, 4, 1, 1], micro_batch_size=None, max_tokens=8) == [[0, 2], [1, 3]]


def test_balancing_never_breaks_the_budget() -> None:
    lengths = [5, 4, 3, 3, 3]
    assert micro_batches(lengths, micro_batch_size=None, max_tokens=9) == [[0, 1], [2, 3, 4]]


def test_a_fixed_size_takes_samples_in_order() -> None:
    assert micro_batches([9, 9, 9], micro_batch_size=2, max_tokens=1) == [[0, 1], [2]]


def test_members_of_an_atom_stay_together() -> None:
    atoms = [7, 8, 7, 8]
    assert micro_batches([1, 1, 1, 1], micro_batch_size=1, max_tokens=1, atoms=atoms) == [[0, 2], [1, 3]]
    assert micro_batches([3, 3, 3, 3], micro_batch_size=None, max_tokens=6, atoms=atoms) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(("size", "budget"), [(0, 8), (None, 0)])
def test_a_limit_below_one_is_refused(size: int | None, budget: int) -> None:
    with pytest.raises(BatchError, match="must be at least 1"):
        micro_batches([1], micro_batch_size=size, max_tokens=budget)


@given(lengths_lists, st.integers(1, 60))
def test_the_token_budget_gives_a_partition_within_the_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(lengths, micro_batch_size=None, max_tokens=budget)
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert all(part == sorted(part) and part for part in parts)
    assert all(sum(lengths[index] for index in part) <= budget or len(part) == 1 for part in parts)
    assert len(parts) == len(first_fit(lengths, budget))


@given(lengths_lists, st.integers(1, 10))
def test_a_fixed_size_gives_a_partition(lengths: list[int], size: int) -> None:
    parts = micro_batches(lengths, micro_batch_size=size, max_tokens=1)
    assert [index for part in parts for index in part] == list(range(len(lengths)))
    assert all(len(part) == size for part in parts[:-1])


def two_samples() -> Batch:
    samples = [Sample(tokens=[1, 2, 3], response_length=2), Sample(tokens=[4, 5], response_length=1)]
    return samples_to_batch(samples, mask_truncated=False, reward_key=None)[0]


def test_packing_concatenates_without_padding_and_restarts_positions() -> None:
    packed = pack(two_samples(), "cpu")
    assert packed["tokens"].tolist() == [[1, 2, 3, 4, 5]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert packed["cu_seqlens"].tolist() == [0, 3, 5]
    assert [ids.tolist() for ids in packed["unconcat_tokens"]] == [[1, 2, 3], [4, 5]]
    assert packed["tokens"].dtype == packed["position_ids"].dtype == torch.int64
    assert packed["cu_seqlens"].dtype == torch.int32


def test_two_packed_sequences_have_no_target_across_their_border() -> None:
    packed = pack(two_samples(), "cpu")
    targets = sum(packed["response_lengths"])
    assert targets == 3
    assert packed["tokens"].numel() - len(packed["unconcat_tokens"]) == targets


def test_packing_moves_every_tensor_and_leaves_the_batch_alone() -> None:
    batch = two_samples()
    batch["advantages"] = [torch.ones(2), torch.ones(1)]
    packed = pack(batch, "meta")
    assert {mask.device.type for mask in packed["loss_masks"] + packed["advantages"]} == {"meta"}
    assert packed["tokens"].device.type == packed["cu_seqlens"].device.type == "meta"
    assert len(batch["tokens"]) == 2
    assert batch["advantages"][0].device.type == "cpu"


def test_an_empty_micro_batch_cannot_be_packed() -> None:
    with pytest.raises(BatchError, match="empty micro-batch"):
        pack({"tokens": []}, "cpu")
