"""Reward for a response that is the label."""

from __future__ import annotations

from stacx_core.data.sample import Sample


def exact(sample: Sample) -> float:
    """1.0 when response and label are equal but for white space around them, else 0.0."""
    if sample.label is None:
        raise ValueError("the sample has no label; set label_key")
    return float(sample.response.strip() == sample.label.strip())
