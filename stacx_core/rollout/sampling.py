"""Choosing the next token, reproducibly per response."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_core.rollout.engine import SamplingParams


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """``[len(seeds), count]`` fp64 numbers in [0, 1): row i depends on ``seeds[i]`` alone."""
    rows = [
        torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed & (2**63 - 1)))
        for seed in seeds
    ]
    return torch.stack(rows)


def choose(logits: Tensor, draws: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """The next token of each row and its log-probability.

    The token is found by inverting the cumulative distribution at one uniform number a row, in fp64, so that it does
    not depend on which other rows are decoded beside it.

    Args:
        logits: ``[R, V]``.
        draws: ``[R]`` fp64 in [0, 1).
        params: Temperature and truncation.

    Returns:
        ``[R]`` int64 ids and ``[R]`` fp32 log-probs under the full softmax at the temperature (1 when greedy).
    """
    logits = logits.float()
    if params.temperature == 0:
        ids = logits.argmax(-1)
        log_probs = logits.log_softmax(-1)
    else:
        log_probs = (logits / params.temperature).log_softmax(-1)
        weights = _truncate(log_probs, params).double()
        cumulative = weights.cumsum(-1)
        targets = draws.to(logits.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
        ids = ids.clamp(max=logits.shape[-1] - 1)
    return ids, log_probs.gather(-1, ids[:, None]).squeeze(-1)


def _truncate(log_probs: Tensor, params: SamplingParams) -> Tensor:
    """``[R, V]`` probabilities with everything outside top-k and the nucleus set to 0."""
    probs = log_probs.exp()
    if 0 < params.top_k < probs.shape[-1]:
        likeliest = probs.topk(params.top_k, dim=-1)
        probs = torch.zeros_like(probs).scatter(-1, likeliest.indices, likeliest.values)
    if params.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        mass = ordered.cumsum(-1)
        before = mass - ordered
        kept = torch.where(before < params.top_p * mass[:, -1:], ordered, 0.0)
        probs = torch.zeros_like(probs).scatter(-1, order, kept)
    return probs
