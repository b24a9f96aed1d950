"""Finds a small input that still fails, by trying smaller ones in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stacx_core.testing.rows import Row

TRIES = 150

Rows = Sequence[Row]


def shrink(rows: Rows, fails: Callable[[Rows], bool]) -> Rows:
    """Drop samples, then tokens, as long as it still fails.

    Args:
        rows: an input that fails.
        fails: whether an input fails in the same way; called at most `TRIES` times.

    Returns:
        The smallest input found, for which `fails` was called last if it is not `rows` itself.
    """
    left = TRIES
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(rows):
            left -= 1
            if fails(smaller):
                rows, progress = smaller, True
                break
            if left == 0:
                break
    return rows


def _smaller(rows: Rows) -> Iterator[Rows]:
    """Every input one step smaller, the largest steps first: one atom alone, one atom less, one token less."""
    atoms = _atoms(rows)
    if len(atoms) > 2:
        yield from atoms
    if len(atoms) > 1:
        for atom in atoms:
            yield [row for row in rows if row not in atom]
    for position, row in enumerate(rows):
        for token in reversed(range(row.sample.response_length if row.sample.response_length > 1 else 0)):
            yield [*rows[:position], row.without_response_token(token), *rows[position + 1 :]]
    for position, row in enumerate(rows):
        if row.sample.prompt_length > 1:
            yield [*rows[:position], row.without_prompt_token(), *rows[position + 1 :]]


def _atoms(rows: Rows) -> list[list[Row]]:
    """Samples that must stay together: the sides of a pair; else each by itself."""
    atoms: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        pair = row.sample.pair_id
        atoms.setdefault(("sample", row.index) if pair is None else ("pair", pair), []).append(row)
    return list(atoms.values())
