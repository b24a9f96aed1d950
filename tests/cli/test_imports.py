"""Describing costs nothing: no heavy module is imported, and none of a command that is not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stacx_core

HEAVY = {"torch", "transformers", "numpy", "ray", "wandb", "rich"}

PROGRAM = """
import contextlib, io, json, sys
from stacx_core.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
assert code == 0, code
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(*arguments: str) -> set[str]:
    path = str(Path(stacx_core.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["plugins"],
        ["plugins", "-v"],
        ["list-recipes"],
        ["list-recipes", "--json"],
        ["show-recipe", "sft"],
        ["check", "--help"],
        ["plan", "--model", "qwen3-4b", "--gpus", "8", "--tp", "8", "--sequence-parallel"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_no_heavy_module_is_imported(arguments: Any) -> None:
    assert modules_after(*arguments) & HEAVY == set()


def test_the_version_needs_neither_click_nor_plugins() -> None:
    assert modules_after("--version") & {"click", "pluggy", "importlib.metadata"} == set()


def test_help_imports_no_command_and_no_plugin() -> None:
    modules = modules_after("--help")
    assert {m for m in modules if m.startswith("stacx_")} & {
        "stacx_core.cli.train",
        "stacx_core.cli.listing",
        "stacx_core.cli.doctor",
        "stacx_core.host_plugin",
    } == set()


def test_every_public_name_is_there() -> None:
    missing = [name for name in stacx_core.__all__ if not hasattr(stacx_core, name)]
    assert missing == []
    assert set(stacx_core.__all__) == set(stacx_core._MODULE_OF)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        stacx_core.Trainer  # noqa: B018
