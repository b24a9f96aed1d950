"""Reward for the final number of a solution as GSM8K writes it (Cobbe et al. 2021, arXiv:2110.14168)."""

from __future__ import annotations

import re
from decimal import Decimal

from stacx_core.data.sample import Sample

MARKER = "####"
"""What a solution writes before its final answer."""

# A minus belongs to the number only where it is no subtraction or range: not behind a word or a bracket.
# A comma does only between groups of three digits, so that "1,2,3" is three numbers.
NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212]\$?|\$[-\u2212]?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def gsm8k(sample: Sample) -> float:
    """1.0 when the response's final number equals the label's, else 0.0.

    The label is a number, or a solution that ends in "#### number". The response's number is the first one
    after its last "####", or the last number anywhere when there is none. Thousands separators, a dollar sign
    and a full stop behind the number do not matter; 72 equals 72.00.

    Raises:
        ValueError: the label is missing or holds no such number.
    """
    if sample.label is None:
        raise ValueError("the sample has no label; set label_key")
    return float(final_number(sample.response) == label_number(sample.label))


def final_number(text: str) -> Decimal | None:
    """The number a response gives as its answer; None when it holds no number."""
    _, marker, tail = text.rpartition(MARKER)
    marked = NUMBER.search(tail) if marker else None
    if marked is not None:
        return _decimal(marked[0])
    numbers = NUMBER.findall(text)
    return _decimal(numbers[-1]) if numbers else None


def label_number(label: str) -> Decimal:
    """The number that a label is, or that follows its last "####"; raises `ValueError` for anything else."""
    text = label.rpartition(MARKER)[2].strip().removesuffix(".")
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"the label {label!r} is no number and does not end in '{MARKER} number'")
    return _decimal(match[0])


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("$", "").replace("\u2212", "-"))
