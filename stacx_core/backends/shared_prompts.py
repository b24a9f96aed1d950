"""Finding prompts that several packed samples have in common, so that a forward computes each of them once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def share_prompts(
    tokens: Sequence[int], total_lengths: Sequence[int], response_lengths: Sequence[int], multiple: int = 1
) -> tuple[Tensor, Tensor]:
    """Which packed tokens to compute when equal prompts are computed once.

    A causal model gives equal prefixes equal outputs, so leaving the repeated ones out changes no value, and the
    gradient of the one that is left is the sum of theirs.

    Args:
        tokens: T token ids of the samples, end to end.
        total_lengths, response_lengths: Of each sample; what is in front of the response is its prompt.
        multiple: The first token is repeated until U is a multiple of this.

    Returns:
        ``kept`` int64 ``[U]``, positions among the T tokens, and ``places`` int64 ``[T]``, for each of the T
        tokens the index into ``kept`` of the one that stands for it. Without equal prompts both count from 0 to T - 1.
    """
    kept: list[int] = []
    places: list[int] = []
    seen: dict[tuple[int, ...], int] = {}
    start = 0
    for total, response in zip(total_lengths, response_lengths, strict=True):
        middle, end = start + total - response, start + total
        prompt = tuple(tokens[start:middle])
        if prompt not in seen:
            seen[prompt] = len(kept)
            kept.extend(range(start, middle))
        places.extend(range(seen[prompt], seen[prompt] + len(prompt)))
        places.extend(range(len(kept), len(kept) + response))
        kept.extend(range(middle, end))
        start = end
    kept.extend([0] * (-len(kept) % multiple))
    return torch.tensor(kept, dtype=torch.int64), torch.tensor(places, dtype=torch.int64)
