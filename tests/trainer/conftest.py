"""Python scripts side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stacx_core


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start Python scripts side by side with the tested package on their path; what still runs at the end is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def run(script: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(stacx_core.__file__).parents[1]), *sys.path])
        command = [sys.executable, str(script), *map(str, arguments)]
        running.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()
