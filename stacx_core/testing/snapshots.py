"""Copies of batch values, to tell later whether they were changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def snapshot(value: Any) -> Any:
    """A copy that later changes do not reach."""
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


def equal(before: Any, after: Any) -> bool:
    """Whether a value is still what it was; NaN is equal to NaN."""
    if isinstance(before, list):
        return len(before) == len(after) and all(map(equal, before, after))
    if isinstance(before, Tensor):
        return before.shape == after.shape and torch.equal(before.nan_to_num(), after.nan_to_num())
    return bool(before == after) or before != before
