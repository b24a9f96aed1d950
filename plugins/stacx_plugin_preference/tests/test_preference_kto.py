"""The baseline of KTO: measured once on mismatched samples, which then leave the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stacx_core import Args, BatchError
from stacx_plugin_preference.kto import MISMATCHED, measure_baseline


@pytest.fixture
def kto(args_of: Callable[..., Args]) -> Args:
    return args_of(dpo_loss_type="kto")


def batch_of(ratios: list[float | None]) -> dict[str, Any]:
    """Two tokens per sample; None is a sample of the data, a number the log-ratio of a mismatched one.

    The second token of every sample is masked and holds what must not be read.
    """
    return {
        "rollout_ids": list(range(len(ratios))),
        "metadata": [{} if ratio is None else {MISMATCHED: True} for ratio in ratios],
        "loss_masks": [torch.tensor([1, 0], dtype=torch.int32) for _ in ratios],
        "log_probs": [torch.tensor([-1.0 + (ratio or 0.0), math.nan]) for ratio in ratios],
        "ref_log_probs": [torch.tensor([-1.0, -math.inf]) for _ in ratios],
    }


@pytest.mark.parametrize(
    ("ratios", "mean", "baseline"), [([0.5, None, 0.1, None], 0.3, 0.3), ([None, -0.5, None, 0.1], -0.2, 0.0)]
)
def test_the_mean_over_mismatched_samples_cut_off_at_zero(
    kto: Args, ratios: list[float | None], mean: float, baseline: float
) -> None:
    batch = batch_of(ratios)
    metrics = measure_baseline(batch, kto)
    assert metrics == pytest.approx({"kto_baseline": baseline, "kto_mismatched_log_ratio": mean})
    assert batch["kto_baseline"] == pytest.approx([baseline] * 2)
    assert batch["rollout_ids"] == [i for i, ratio in enumerate(ratios) if ratio is None]
    assert all(len(values) == 2 for values in batch.values())


def test_the_lists_of_another_copy_of_the_batch_are_left_alone(kto: Args) -> None:
    whole = batch_of([0.5, None])
    measure_baseline(dict(whole), kto)
    assert len(whole["loss_masks"]) == 2
    assert "kto_baseline" not in whole


def test_other_losses_have_no_baseline(args_of: Callable[..., Args]) -> None:
    batch = batch_of([None, None])
    assert measure_baseline(batch, args_of()) == {}
    assert "kto_baseline" not in batch


def test_a_rollout_without_mismatched_samples_is_an_error(kto: Args) -> None:
    with pytest.raises(BatchError, match="the rollout has none"):
        measure_baseline(batch_of([None, None]), kto)
