"""Which process reads which tokens of a packed micro-batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.packing import pack
from stacx_core.planning.layout import Layout


def test_samples_are_cut_one_by_one() -> None:
    tokens = torch.arange(1, 9)[None]
    first, second = (pack(tokens, [5, 3], Layout(context=2), rank) for rank in range(2))
    assert first.tokens.tolist() == [[1, 2, 0, 0, 6, 0]]
    assert first.positions.tolist() == [[0, 1, 6, 7, 0, 3]]
    assert second.tokens.tolist() == [[3, 4, 5, 0, 7, 8]]
    assert second.positions.tolist() == [[2, 3, 4, 5, 1, 2]]
    assert first.rows.tolist() == [0, 1, -1, -1, -1, 4, -1, -1]
    assert second.rows.tolist() == [-1, -1, 0, 1, 2, -1, 4, 5]


def test_sequence_parallelism_adds_a_tail() -> None:
    packed = pack(torch.arange(1, 6)[None], [3, 2], Layout(tensor=4, sequence_parallel=True), 0)
    assert packed.tokens.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert packed.rows.tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 4]))
def test_every_token_is_where_the_input_says(lengths: list[int], ranks: int, tensor: int) -> None:
    tokens = torch.arange(sum(lengths))[None]
    layout = Layout(tensor=tensor, context=ranks, sequence_parallel=tensor > 1)
    inputs = [pack(tokens, lengths, layout, rank) for rank in range(ranks)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    for token in range(sum(lengths)):
        ((owner, row),) = [(packed, int(packed.rows[token])) for packed in inputs if packed.rows[token] >= 0]
        assert owner.tokens[0, row] == token
        assert owner.positions[0, row] == positions[token]
    assert len({packed.tokens.shape for packed in inputs}) == 1
    assert inputs[0].tokens.shape[1] % tensor == 0
