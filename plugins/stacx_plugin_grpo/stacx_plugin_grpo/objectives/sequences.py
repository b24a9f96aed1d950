"""Between per-token vectors ``[N]`` of a micro-batch and one number per sequence ``[B]``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_core.objectives import where_masked

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before the exponential, so that no ratio overflows fp32."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """``exp`` of a log-ratio clamped to +-20."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_sums(x: Tensor, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Tensor:
    """``[B]``: the sum of ``x [N]`` over the trained tokens of each sequence, 0 where there is none."""
    if not response_lengths:
        return x.new_zeros(0)
    kept = where_masked(x, torch.cat(list(loss_masks)).to(x.device))
    return torch.stack([part.sum() for part in kept.split(list(response_lengths))])


def sequence_counts(loss_masks: Sequence[Tensor]) -> Tensor:
    """``[B]`` int64: the trained tokens of each sequence."""
    counts = [mask.count_nonzero() for mask in loss_masks]
    return torch.stack(counts) if counts else torch.zeros(0, dtype=torch.int64)


def sequence_means(x: Tensor, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Tensor:
    """``[B]``: the mean of ``x [N]`` over the trained tokens of each sequence, 0 where there is none."""
    return sequence_sums(x, response_lengths, loss_masks) / sequence_counts(loss_masks).clamp(min=1).to(x.device)


def per_token(values: Tensor, response_lengths: Sequence[int]) -> Tensor:
    """``[N]``: the value of each sequence ``[B]`` at each of its tokens."""
    return values.repeat_interleave(torch.tensor(list(response_lengths), dtype=torch.int64, device=values.device))
