"""The `stacx` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stacx_core


@pytest.fixture
def child(rewards: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with arguments in a child process that finds the rewards and the tested package."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        path = os.pathsep.join([str(rewards), str(Path(stacx_core.__file__).parents[1]), *sys.path])
        return subprocess.run(
            [sys.executable, *arguments],
            env={**clean, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


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
