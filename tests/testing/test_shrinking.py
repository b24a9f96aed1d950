"""Inputs are made smaller in a fixed order until nothing smaller fails."""

from __future__ import annotations

from collections.abc import Sequence

from stacx_core.testing import Row, grouped_rows, paired_rows
from stacx_core.testing.shrinking import TRIES, shrink


def has_hole(rows: Sequence[Row]) -> bool:
    """A trained token, later than one that is not."""
    return any("01" in "".join(map(str, row.sample.mask)) for row in rows)


def test_what_remains_is_one_sample_with_two_tokens() -> None:
    (row,) = shrink(grouped_rows(), has_hole)
    assert row.sample.mask == [0, 1]
    assert row.sample.prompt_length == 1
    assert len(row.output) == len(row.sample.tokens) == 3
    assert len(row.keys["log_probs"]) == 2


def test_a_failure_of_two_groups_keeps_a_sample_of_each() -> None:
    rows = shrink(grouped_rows(), lambda rows: len({row.sample.group_index for row in rows}) >= 2)
    assert sorted(row.sample.response_length for row in rows) == [1, 1]
    assert len({row.sample.group_index for row in rows}) == 2


def test_the_sides_of_a_pair_stay_together() -> None:
    rows = shrink(paired_rows(), lambda rows: any(row.sample.is_chosen is False for row in rows))
    assert [row.sample.is_chosen for row in rows] in ([True, False], [False, True])


def test_the_tries_are_bounded_and_the_last_failure_is_returned() -> None:
    calls = 0

    def never_again(rows: Sequence[Row]) -> bool:
        nonlocal calls
        calls += 1
        return False

    rows = grouped_rows()
    assert shrink(rows, never_again) is rows
    assert calls <= TRIES
    assert [row.sample.tokens for row in grouped_rows()] == [row.sample.tokens for row in rows]


def test_a_token_taken_out_of_the_middle_takes_its_output_and_its_keys() -> None:
    row = grouped_rows()[0]
    shorter = row.without_response_token(2)
    assert shorter.sample.mask == [1, 1, 1]
    assert shorter.sample.tokens == row.sample.tokens[:4] + row.sample.tokens[5:]
    assert shorter.keys["log_probs"].tolist() == row.keys["log_probs"][[0, 1, 3]].tolist()
    assert shorter.output[4].tolist() == row.output[5].tolist()
