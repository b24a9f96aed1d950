"""Dropping finished rows of a decode."""

from __future__ import annotations

import pytest
import torch

from stacx_core.rollout.decoding import DecodeLayout


def layout(valid: torch.Tensor) -> DecodeLayout:
    """Five rows over two columns, one of them free; row i holds the key i and the value 10 i."""
    keys = torch.arange(5.0).reshape(5, 1, 1, 1).expand(5, 1, 2, 2).clone()
    return DecodeLayout({0: (keys, 10 * keys)}, valid, torch.tensor([3, 4, 5, 6, 7]), column=1)


@pytest.mark.parametrize(
    ("going", "order"),
    [
        ([True, True, True, True, True], [0, 1, 2, 3, 4]),
        ([True, False, True, True, True], [0, 4, 2, 3]),
        ([False, True, False, True, True], [3, 1, 4]),
        ([True, True, False, False, False], [0, 1]),
        ([False, False, False, False, True], [4]),
        ([False, False, False, False, False], []),
    ],
)
def test_the_last_rows_left_move_into_the_gaps(going: list[bool], order: list[int]) -> None:
    decode = layout(torch.ones(5, 2, dtype=torch.bool))
    assert decode.keep(torch.tensor(going)).tolist() == order
    assert decode.advance().flatten().tolist() == [3 + row for row in order]


def test_each_row_goes_on_attending_to_its_own_cache() -> None:
    valid = torch.tensor([[True, True], [True, True], [False, True], [True, True], [True, True]])
    decode = layout(valid)
    order = decode.keep(torch.tensor([False, True, True, False, True]))
    assert order.tolist() == [4, 1, 2]
    decode.advance()
    new = torch.zeros(3, 1, 1, 2)
    attended = decode.attend(0, new, new, new, scale=1.0, dropout=0.0)
    # A query of zero weighs the old and the new value alike; row 2 has no old one.
    assert attended[:, 0, 0, 0].tolist() == [20.0, 5.0, 0.0]
