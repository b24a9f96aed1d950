"""One task: what is asked, within which limits, and where its environment, tests and solution lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What an episode of a task may use.

    Args:
        agent_timeout: Seconds for the agent's whole work.
        verifier_timeout: Seconds for the tests.
        build_timeout: Seconds for making the environment.
        cpus: Processors.
        memory_mb: Memory of all processes together, in MiB.
        storage_mb: What may be written, in MiB.
    """

    agent_timeout: float = 600.0
    verifier_timeout: float = 600.0
    build_timeout: float = 600.0
    cpus: int = 1
    memory_mb: int = 2048
    storage_mb: int = 1024


@dataclass(frozen=True)
class Task:
    """A task folder, read and checked.

    Args:
        name: The folder's own name.
        folder: The folder.
        instruction: What the agent is told.
        limits: What an episode may use.
        metadata: The table ``[metadata]`` as it stands.
        docker_image: A ready image for a container engine, or None.
        env: Variables of the agent's commands.
        verifier_env: Further variables of the tests.
        solution_env: Further variables of the solution.
    """

    name: str
    folder: Path
    instruction: str
    limits: Limits = Limits()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    docker_image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> Path:
        """Folder of the Dockerfile and the files that it copies; need not exist."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        """Folder of ``test.sh``, never shown to the agent."""
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        """Folder of ``solve.sh``, if the task has one."""
        folder = self.folder / "solution"
        return folder if (folder / "solve.sh").is_file() else None
