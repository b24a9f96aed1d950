"""What the README tells people to run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from stacx_core import TRAINING_CONFIGS
from stacx_core.recipes import REGISTRY

INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt"


@pytest.mark.parametrize("rest", ["python examples/quickstart/run.py", "pytest"])
def test_each_command_is_one_line_in_a_block_of_its_own(readme: Any, rest: str) -> None:
    commands = [block.text for block in readme.blocks("sh")]
    assert commands.count(f"{INSTALL} && {rest}\n") == 1


def test_ci_runs_the_test_command_of_the_readme(readme: Any) -> None:
    (line,) = [x for x in readme.text.splitlines() if x.startswith("python3 -m venv ") and x.endswith("pytest")]
    script = (readme.path.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "grep -x 'python3 -m venv .* && pytest' README.md" in script
    assert line == f"{INSTALL} && pytest"


def test_the_algorithm_of_the_readme_trains(
    readme: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two modules are written out as they stand; every update has the metric that the loss returns."""
    for block in readme.blocks("python"):
        name = block.text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    assert "my_algo" not in TRAINING_CONFIGS  # every plugin is loaded now: only what follows is forgotten again
    monkeypatch.setattr(REGISTRY, "registrations", list(REGISTRY.registrations))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_algo")
    done = train("my_algo", "--rm-type", "exact", "--num-rollout", "2")
    assert done.code == 0, done.err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert all("train/my_loss" in json.loads(line) for line in lines)
    assert len(lines) == 2


def test_the_numbers_in_the_readme_of_a_plugin(pages: Any) -> None:
    """The last comment of a block is what its last expression gives."""
    blocks = [block for page in pages if page.path.match("plugins/*/README.md") for block in page.blocks("python")]
    assert blocks
    for block in blocks:
        *code, expression, printed = block.text.splitlines()
        names: dict[str, Any] = {}
        exec("\n".join(code), names)
        assert repr(eval(expression, names)) == printed.removeprefix("# ")
