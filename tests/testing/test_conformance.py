"""The class that plugin authors inherit, on the host's own recipe, and on a plugin with a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import stacx_core
from stacx_core.testing import CHECKS, RecipeConformance

THREE_LINES = """
import planted
from stacx_core.testing import RecipeConformance
class TestPlanted(RecipeConformance):
    recipe = "planted"
"""


class TestSft(RecipeConformance):
    recipe = "sft"


def test_a_fault_fails_the_test_of_its_check_and_shows_the_input(
    tmp_path: Path, sound_source: str, make_source: Callable[..., str]
) -> None:
    loss = """
    def compute_loss(self, model_output, batch, reducer):
        loss, metrics = super().compute_loss(model_output, batch, reducer)
        return loss / len(batch["response_lengths"]), metrics
    """
    (tmp_path / "sound.py").write_text(sound_source)
    (tmp_path / "planted.py").write_text(make_source("planted", "planted", "Divided by the micro-batch.", loss))
    (tmp_path / "test_planted.py").write_text(THREE_LINES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "micro_batch_split or masked_rows"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(stacx_core.__file__).parents[1])])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "FAILED test_planted.py::TestPlanted::test_recipe[micro_batch_split]" in done.stdout, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "with micro-batches of 1" in done.stdout
    assert re.search(r"sample \d+: prompt 1, response 1, mask 1", done.stdout)


def test_every_check_says_what_holds_and_what_it_finds() -> None:
    for check in CHECKS.values():
        assert check.holds.endswith(".")
        assert check.finds.endswith(".")
