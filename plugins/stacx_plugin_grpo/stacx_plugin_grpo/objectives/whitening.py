"""Whitening over the trained tokens of a whole rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stacx_core import BatchError
from stacx_plugin_grpo.objectives.group_advantages import ROUNDING

VARIANCE_EPSILON = 1e-8


class Whitened(NamedTuple):
    """The whitened vectors, and the mean and the variance they were whitened with."""

    values: list[Tensor]
    mean: float
    variance: float


def whiten(values: Sequence[Tensor], masks: Sequence[Tensor]) -> Whitened:
    """``(x - mean) / sqrt(var + 1e-8)`` with the statistics of all trained tokens.

    The variance is the sample's (n - 1), from deviations from the mean in fp64. Tokens that are all equal become
    exactly 0 instead of rounding errors times 1e4.

    Args:
        values: one ``[R_i]`` vector per sample of the whole rollout.
        masks: one ``[R_i]`` mask per sample.

    Returns:
        ``[R_i]`` fp32 vectors, masked positions transformed like the others.

    Raises:
        BatchError: no token is trained, so there is nothing to whiten with.
    """
    trained = [x.double()[mask.bool()] for x, mask in zip(values, masks, strict=True)]
    kept = torch.cat(trained) if trained else torch.zeros(0)
    if not len(kept):
        raise BatchError("no token of the rollout is trained, so its advantages cannot be whitened; skip the update")
    mean = float(kept.mean())
    if float(kept.max() - kept.min()) <= ROUNDING * float(kept.abs().max()):
        return Whitened([torch.zeros(len(x)) for x in values], mean, 0.0)
    variance = float((kept - mean).square().sum() / (len(kept) - 1))
    scale = (variance + VARIANCE_EPSILON) ** -0.5
    return Whitened([((x.double() - mean) * scale).float() for x in values], mean, variance)
