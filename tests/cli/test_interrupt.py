"""Ctrl-C before a run has begun: one line and exit code 130, whatever is being imported."""

from __future__ import annotations

import signal
from typing import Any

import pytest

INTERRUPTED_IN_AN_IMPORT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{disposition})
sys.meta_path.insert(0, Finder())
runpy.run_module("stacx_core", run_name="__main__")
"""

TRAIN = ["train", "--algorithm", "sft", "--hf-checkpoint", "./none", "--prompt-data", "none.jsonl"]
TRAIN += ["--num-rollout", "1", "--output-dir", "run"]


@pytest.mark.parametrize("module", ["click", "stacx_core.cli.train", "torch", "transformers.models.auto"])
def test_ctrl_c_during_an_import(child: Any, module: str) -> None:
    program = INTERRUPTED_IN_AN_IMPORT.format(module=module, disposition="default_int_handler")
    done = child("-c", program, *TRAIN)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "error: interrupted")
    assert "Traceback" not in done.stderr


def test_where_the_signal_is_ignored_it_stays_so(child: Any) -> None:
    """As of a background job of a shell script."""
    done = child("-c", INTERRUPTED_IN_AN_IMPORT.format(module="click", disposition=signal.SIG_IGN.name), "list-recipes")
    assert done.returncode == 0
    assert "sft" in done.stdout
