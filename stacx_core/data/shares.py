"""Dealing the micro-batches of a step to data-parallel ranks, as many to each."""

from __future__ import annotations

from collections.abc import Sequence


def equal_shares(cut: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int) -> list[list[list[int]]]:
    """As many micro-batches for every rank, with about as many tokens.

    Ranks that make different numbers of them wait for each other for ever in the first collective of the one too many,
    so that a rank with nothing left to do gets empty ones.

    Args:
        cut: Positions of the samples of each micro-batch.
        lengths: Tokens of each sample.
        ranks: How many share them.

    Returns:
        Per rank its micro-batches, empty ones last. Equal input gives equal output on every rank.
    """
    if ranks == 1:
        return [[list(positions) for positions in cut]]
    each = -(-len(cut) // ranks)
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    tokens = [sum(lengths[position] for position in positions) for positions in cut]
    for index in sorted(range(len(cut)), key=lambda index: (-tokens[index], index)):
        rank = min((r for r in range(ranks) if len(shares[r]) < each), key=lambda r: (loads[r], r))
        shares[rank].append(list(cut[index]))
        loads[rank] += tokens[index]
    return [sorted(share) + [[] for _ in range(each - len(share))] for share in shares]
