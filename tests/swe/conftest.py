"""Small tasks to work in, and the sandboxes of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stacx_core.swe.sandboxes.bubblewrap import BubblewrapSandbox
from stacx_core.swe.sandboxes.bubblewrap_provider import BubblewrapProvider
from stacx_core.swe.tasks import Task, read_task

TASK_TOML = """
version = "1.0"
[agent]
timeout_sec = 30
[verifier]
timeout_sec = {verifier}
[environment]
memory_mb = {memory}
storage_mb = {storage}
"""
SCORE = "mkdir -p /logs/verifier; cat /app/score.txt > /logs/verifier/reward.txt"
MakeTask = Callable[..., Task]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes a task folder and reads it; its working folder has ``score.txt`` with a 0, which is its reward."""

    def make(
        name: str = "sum",
        test: str = SCORE,
        dockerfile: str = "FROM x\nWORKDIR /app\nCOPY score.txt .\n",
        memory: int = 256,
        storage: int = 64,
        verifier: float = 20,
    ) -> Task:
        folder = tmp_path / name
        files = {
            "instruction.md": "Write 1 into score.txt.\n",
            "task.toml": TASK_TOML.format(memory=memory, storage=storage, verifier=verifier),
            "tests/test.sh": test + "\n",
            "environment/Dockerfile": dockerfile,
            "environment/score.txt": "0\n",
            "solution/solve.sh": "echo 1 > /app/score.txt\n",
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return read_task(folder)

    return make


@pytest.fixture
def provider(tmp_path: Path) -> BubblewrapProvider:
    """Makes bubblewrap sandboxes."""
    if shutil.which("bwrap") is None:
        pytest.skip("install bubblewrap (apt install bubblewrap) to test its sandboxes")
    return BubblewrapProvider(cache=tmp_path / "cache")


@pytest.fixture
def sandbox(provider: BubblewrapProvider, make_task: MakeTask) -> Iterator[BubblewrapSandbox]:
    """A sandbox of the small task, with 256 MiB of memory and 64 MiB of storage."""
    opened = provider.open(make_task())
    yield opened
    opened.close()
