"""The environment that the how-to page writes can be trained in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_the_environment_of_the_page_is_played(
    pages: Any, stacx: Any, metrics: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = [page for page in pages if page.path.name == "write-an-environment.md"]
    (block,) = page.blocks("python")
    (tmp_path / "my_games.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["train", "--algorithm", "grpo", "--environment", "my_games:Sum", "--hf-checkpoint", checkpoint]
    command += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "2"]
    done = stacx(*command, "--max-turns", "1", "--num-rollout", "1", "--output-dir", tmp_path / "run")
    assert done.code == 0, done.err
    (line,) = metrics(tmp_path / "run")
    assert line["rollout/outcome_done"] + line["rollout/outcome_turn_limit"] == 16
