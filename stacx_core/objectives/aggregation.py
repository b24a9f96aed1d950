"""How per-token losses become one number: four named aggregations, each a numerator over a normalizer.

A micro-batch contributes a numerator, the optimiser step has one normalizer, and the loss of the step is
the sum of the numerators over the normalizer. No numerator depends on what else shares its micro-batch, so
neither the loss nor its gradient depends on how the samples are cut into micro-batches or ranks.

Symbols: ``x`` per-token values, ``m`` loss mask in {0, 1}, ``n_i`` trainable tokens of sample i, ``D_i``
trainable tokens of the rollout that sample i belongs to, ``G`` rollouts in the step, ``L_max`` longest
response allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from stacx_core.aggregations import AGGREGATIONS

Reducer = Callable[[Tensor], Tensor]
"""Per-token values ``[N]`` -> the numerator of the run's aggregation, 0-d."""


def where_masked(x: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """``x`` where ``mask`` is set and ``fill`` elsewhere; never ``x * mask``, because NaN times 0 is NaN.

    Apply it to the inputs of a kernel, before any arithmetic: an ``exp`` of a masked infinity has a NaN
    gradient even when its value is discarded later.

    Args:
        x: ``[N]`` floating point.
        mask: ``[N]``, any dtype, nonzero where ``x`` counts.
        fill: the value of masked slots.
    """
    return torch.where(mask.bool(), x, torch.full((), fill, dtype=x.dtype, device=x.device))


def mean_over(values: Tensor, counted: Tensor) -> Tensor:
    """A metric that is averaged over the whole step: what to add up, and what to divide by.

    Args:
        values: ``[N]``.
        counted: ``[N]`` bool, which of them count.

    Returns:
        ``[2]`` fp64, detached: the sum of the values that count, and their number.
    """
    kept = values.detach()[counted]
    return torch.stack([kept.double().sum(), counted.sum().double()])


def sum_of_sample_mean(
    x: Tensor,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    denominators: Sequence[int | float] | None = None,
    per_token: bool = False,
) -> Tensor:
    """Sum over samples of the masked mean of each sample, ``sum_i sum_t x m / max(D_i, 1)``.

    Args:
        x: ``[N]`` values of all response tokens, sample after sample; ``N = sum(response_lengths)``.
        response_lengths: response tokens of each sample.
        loss_masks: one ``[R_i]`` mask per sample.
        denominators: what to divide each sample by; its own mask sum by default. Samples of one rollout pass
            the rollout's mask sum, so that cutting a rollout into samples does not change its weight.
        per_token: return the plain masked sum ``sum_i sum_t x m`` instead.

    Returns:
        0-d, in float64 for float64 input and in float32 otherwise. Masked slots change nothing, NaN included.

    Raises:
        ValueError: the lengths of ``x``, ``response_lengths``, ``loss_masks`` and ``denominators`` disagree.
    """
    mask = _flat_mask(x, response_lengths, loss_masks)
    kept = where_masked(x if x.dtype == torch.float64 else x.float(), mask)
    if per_token or not response_lengths:
        return kept.sum()
    if denominators is None:
        denominators = [int(mask_i.count_nonzero()) for mask_i in loss_masks]
    if len(denominators) != len(response_lengths):
        raise ValueError(
            f"denominators: got {len(denominators)} for {len(response_lengths)} samples; pass one per sample"
        )
    sums = torch.stack([part.sum() for part in torch.split(kept, list(response_lengths))])
    return (sums / sums.new_tensor([max(d, 1) for d in denominators])).sum()


def _flat_mask(x: Tensor, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Tensor:
    """All masks in one ``[N]`` bool tensor on the device of ``x``, after the shapes have been checked."""
    expected = sum(response_lengths)
    if x.dim() != 1 or x.numel() != expected:
        raise ValueError(
            f"expected one value per response token, shape [{expected}] = sum of response_lengths, "
            f"got shape {list(x.shape)}"
        )
    lengths = [int(mask.numel()) for mask in loss_masks]
    if lengths != list(response_lengths):
        raise ValueError(f"loss_masks have lengths {lengths}, response_lengths are {list(response_lengths)}")
    if not lengths:
        return torch.zeros(0, dtype=torch.bool, device=x.device)
    return torch.cat([mask.reshape(-1) for mask in loss_masks]).bool().to(x.device)


class Aggregation(StrEnum):
    """The named ways to weight tokens. ``formula`` is the loss of one optimiser step."""

    SAMPLE_MEAN = "sample_mean"
    TOKEN_MEAN = "token_mean"
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    CONSTANT = "constant"

    @property
    def formula(self) -> str:
        """The aggregation in symbols, for display."""
        return AGGREGATIONS[self]

    def numerator(
        self,
        x: Tensor,
        response_lengths: Sequence[int],
        loss_masks: Sequence[Tensor],
        denominators: Sequence[int | float] | None = None,
    ) -> Tensor:
        """What one micro-batch adds to the step, 0-d; arguments as for ``sum_of_sample_mean``."""
        per_token = self is not Aggregation.SAMPLE_MEAN
        return sum_of_sample_mean(x, response_lengths, loss_masks, denominators, per_token)

    def normalizer(self, num_rollouts: int, num_tokens: int, max_response_len: int | None = None) -> int:
        """What the summed numerators of a step are divided by.

        Args:
            num_rollouts: ``G``, distinct rollouts in the step over all ranks, empty ones included.
            num_tokens: trainable tokens in the step over all ranks, from the original masks.
            max_response_len: ``L_max``, needed by ``constant`` only.

        Raises:
            ValueError: ``constant`` without a positive ``max_response_len``.
        """
        if self is Aggregation.TOKEN_MEAN:
            return max(num_tokens, 1)
        if self is not Aggregation.CONSTANT:
            return max(num_rollouts, 1)
        if not max_response_len or max_response_len < 1:
            raise ValueError(
                f"aggregation 'constant' divides by the longest response allowed, got {max_response_len!r}; "
                "set rollout_max_response_len"
            )
        return max(num_rollouts, 1) * max_response_len


def make_reducer(
    mode: Aggregation | str,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    denominators: Sequence[int | float] | None = None,
) -> Reducer:
    """The reducer handed to ``compute_loss`` for one micro-batch.

    It maps ``[N]`` to the numerator of ``mode``. A 0-d tensor is taken as already reduced by
    ``sum_of_sample_mean`` and passes unchanged, which only ``sample_mean`` can mean.

    Args:
        mode: an ``Aggregation`` or its name.
        response_lengths, loss_masks, denominators: as for ``sum_of_sample_mean``.

    Raises:
        ValueError: an unknown mode; later, from the reducer, a 0-d tensor in another mode than
            ``sample_mean`` or a shape that is neither 0-d nor ``[N]``.
    """
    aggregation = Aggregation(mode)

    def reducer(x: Tensor) -> Tensor:
        if x.dim() > 0:
            return aggregation.numerator(x, response_lengths, loss_masks, denominators)
        if aggregation is Aggregation.SAMPLE_MEAN:
            return x
        raise ValueError(
            f"the loss was reduced to 0-d before aggregation '{aggregation}' could weight its tokens; "
            f"return the 1-d vector of length {sum(response_lengths)}, or use aggregation 'sample_mean'"
        )

    return reducer
