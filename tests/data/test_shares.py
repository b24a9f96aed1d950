"""Dealing micro-batches to ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.packing import micro_batches
from stacx_core.data.shares import equal_shares


def test_a_rank_with_fewer_micro_batches_gets_empty_ones() -> None:
    """Five samples of 400 tokens in a budget of 400 are five micro-batches; three ranks make two each."""
    lengths = [400] * 5
    cut = micro_batches(lengths, micro_batch_size=None, max_tokens=400)
    assert equal_shares(cut, lengths, 3) == [[[0], [3]], [[1], [4]], [[2], []]]


def test_the_longest_are_dealt_first() -> None:
    """900 tokens go to one rank and 500 + 400 to the other."""
    assert equal_shares([[0], [1], [2]], [500, 400, 900], 2) == [[[2], []], [[0], [1]]]


def test_fewer_samples_than_ranks() -> None:
    """Two samples for four ranks: two of these have nothing but an empty micro-batch."""
    assert equal_shares([[0], [1]], [10, 20], 4) == [[[1]], [[0]], [[]], [[]]]


def test_one_rank_keeps_the_order() -> None:
    """Nothing is dealt where there is nobody to share with."""
    assert equal_shares([[1], [0, 2]], [1, 1, 1], 1) == [[[1], [0, 2]]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60), st.integers(1, 5))
def test_every_sample_is_in_one_share_and_all_shares_have_one_size(lengths: list[int], budget: int, ranks: int) -> None:
    """Nothing is lost or doubled, and nobody makes more micro-batches than another."""
    cut = micro_batches(lengths, micro_batch_size=None, max_tokens=budget)
    shares = equal_shares(cut, lengths, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    assert sorted(position for share in shares for part in share for position in part) == list(range(len(lengths)))
