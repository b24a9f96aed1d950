"""Which tokens and which response tokens each context-parallel process has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.data.zigzag import zigzag_chunks, zigzag_rows
from stacx_core.objectives import response_rows


@pytest.mark.parametrize(
    ("length", "response", "chunks", "held"),
    [
        (10, 6, [[(0, 3), (9, 12)], [(3, 6), (6, 9)]], [[], [0, 1, 2, 3, 4, 5]]),
        (10, 2, [[(0, 3), (9, 12)], [(3, 6), (6, 9)]], [[], [0, 1]]),
        (13, 9, [[(0, 4), (12, 16)], [(4, 8), (8, 12)]], [[0], [1, 2, 3, 4, 5, 6, 7, 8]]),
    ],
)
def test_two_processes(length: int, response: int, chunks: list[list[tuple[int, int]]], held: list[list[int]]) -> None:
    """Response token t is held where the logits that predict it are: one position before it."""
    predicting = response_rows([length], [response])
    for rank in range(2):
        assert [(part.start, part.stop) for part in zigzag_chunks(length, 2, rank)] == chunks[rank]
        here = zigzag_rows([length], 2, rank)[predicting] >= 0
        assert here.nonzero().squeeze(-1).tolist() == held[rank]


def test_four_processes_have_a_chunk_from_either_end() -> None:
    assert [zigzag_chunks(16, 4, rank) for rank in range(4)] == [
        (range(0, 2), range(14, 16)),
        (range(2, 4), range(12, 14)),
        (range(4, 6), range(10, 12)),
        (range(6, 8), range(8, 10)),
    ]


def test_rows_of_packed_samples_skip_the_padding_of_each() -> None:
    """Samples of 3 and 6 tokens are padded to 4 and 8: the first process has 0, (3), and 0, 1, (6), (7)."""
    assert zigzag_rows([3, 6], 2, 0).tolist() == [0, -1, -1, 2, 3, -1, -1, -1, -1]
    assert zigzag_rows([3, 6], 2, 1).tolist() == [-1, 0, 1, -1, -1, 2, 3, 4, 5]


@given(lengths=st.lists(st.integers(1, 64), max_size=4), ranks=st.sampled_from([1, 2, 4]))
def test_every_token_has_one_owner_and_comes_back(lengths: list[int], ranks: int) -> None:
    values = torch.arange(sum(lengths))
    gathered = torch.full_like(values, -1)
    for rank in range(ranks):
        rows = zigzag_rows(lengths, ranks, rank)
        local = torch.full((sum(2 * len(zigzag_chunks(length, ranks, rank)[0]) for length in lengths),), -1)
        here = rows >= 0
        local[rows[here]] = values[here]
        assert (gathered[here] == -1).all()
        gathered[here] = local[rows[here]]
    assert torch.equal(gathered, values)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of 2; it must be 0 to 1"):
        zigzag_chunks(4, 2, rank)
