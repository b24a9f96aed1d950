"""Two and four processes, started when first used and ended with the session."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("processes_of_tests", Path(__file__).with_name("processes.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def two() -> Iterator[Any]:
    """Two processes: ``two.run(function, *arguments, tensor=2)``; see `Processes.run`."""
    processes = _module.Processes(2)
    yield processes
    processes.stop()


@pytest.fixture(scope="session")
def four() -> Iterator[Any]:
    """Four processes, for a layout of two by two."""
    processes = _module.Processes(4)
    yield processes
    processes.stop()
