"""The example package trains through the command, in a process of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "stacx-plugin-reinforce"
MODULE = "stacx_plugin_reinforce"


def test_a_third_party_recipe_trains(site: Any, checkpoint: Path, sums: Path) -> None:
    source = (EXAMPLE / f"{MODULE}.py").read_text()
    site.add("stacx-plugin-reinforce", source, entry="reinforce", module=MODULE)
    flags = ["--algorithm", "reinforce", "--hf-checkpoint", str(checkpoint), "--prompt-data", str(sums)]
    flags += ["--label-key", "label", "--rm-type", "exact", "--output-dir", "run", "--num-rollout", "2"]
    flags += ["--rollout-batch-size", "8", "--n-samples-per-prompt", "8", "--rollout-max-response-len", "2"]
    done = site.stacx("train", *flags, "--lr", "1e-3")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (site.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout"] for line in lines] == [1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert lines[-1]["train/updates"] > 0
    assert "train/reinforce_loss" in lines[0]
