"""The samples that `stacx check` uses."""

from __future__ import annotations

import torch

from stacx_core import Sample
from stacx_core.testing import Row, Subject

MASKS = ("1101", "011", "1", "110110", "000", "11")
"""Of samples with holes, with one point, and with none to train on."""


def point_rows(subject: Subject) -> tuple[Row, ...]:
    """Points, targets and what a model might say of them, in float64; the same each time."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index, mask in enumerate(MASKS):
        count = len(mask)
        output = torch.randn(count, generator=generator, dtype=torch.float64)
        targets = torch.randn(count, generator=generator)
        entries = {"inputs": torch.randn(count, 3, generator=generator), "targets": targets}
        loss_mask = [int(kept) for kept in mask]
        rows.append(Row(Sample(index=index, inputs=entries, response_length=count, loss_mask=loss_mask), output, {}))
    return tuple(rows)
