"""Servers that start in a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stacx_core.rollout.sglang.launch import LaunchPlan

collect_ignore_glob = [] if sys.platform.startswith("linux") else ["test_*.py"]


@pytest.fixture
def plan(traces: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchPlan]:
    """How to start a stand-in: `plan(*arguments, timeout=30.0)`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def make(*arguments: str, timeout: float = 30.0) -> LaunchPlan:
        further = ("--mark", traces.mark, *arguments)
        return LaunchPlan(sys.executable, "fake_sglang", "the/model", further, tmp_path / "sglang", timeout)

    return make
