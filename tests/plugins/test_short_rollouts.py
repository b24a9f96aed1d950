"""Rollouts that bring fewer responses than were asked for make as many optimizer steps, the last one shorter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHORT = """
from stacx_core import ModelRole, TrainingConfig, recipe
from stacx_core.rollout.dataset import DatasetRollout
from stacx_core.rollout.protocol import Rollout

class ShortRollout(DatasetRollout):
    def roll(self, rollout, engine):
        rolled = super().roll(rollout, engine)
        return Rollout(rolled.samples[:{kept}], rolled.metrics)

@recipe("short")
def short():
    loss = "stacx_core.specialization:CausalDecoderSpecialization"
    role = ModelRole("policy", loss, sync_to_rollout=True, reads={{"tokens": ()}})
    return TrainingConfig("short", (role,), rollout="stacx_short:ShortRollout")
"""


@pytest.mark.parametrize(
    ("kept", "flags", "updates", "dropped"),
    [
        (6, ["--num-steps-per-rollout", "3"], 3, 0),
        (5, ["--num-steps-per-rollout", "3"], 3, 0),
        (2, ["--num-steps-per-rollout", "2"], 2, 0),
        (5, ["--num-steps-per-rollout", "2"], 2, 0),
        (6, ["--global-batch-size", "4"], 1, 2),
        (3, ["--global-batch-size", "4"], 1, 0),
    ],
)
def test_steps_of_a_rollout_of_six_of_which_some_are_there(
    site: Any, checkpoint: Path, sums: Path, kept: int, flags: list[str], updates: int, dropped: int
) -> None:
    site.add("stacx-short", SHORT.format(kept=kept))
    given = ["--algorithm", "short", "--hf-checkpoint", str(checkpoint), "--prompt-data", str(sums)]
    given += ["--label-key", "label", "--output-dir", "run", "--rollout-batch-size", "6", "--num-rollout", "1"]
    done = site.stacx("train", *given, *flags, "--lr", "1e-3", "--rollout-max-response-len", "4")
    assert done.code == 0, done.err
    line = json.loads((site.folder / "run" / "metrics.jsonl").read_text())
    assert (line["train/updates"], line["train/dropped_rollouts"]) == (updates, dropped)
    assert (f"{dropped} trailing responses do not fill a step" in done.err) == (dropped > 0)
