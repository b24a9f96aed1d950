"""Reads task folders in the Harbor format."""

from __future__ import annotations

import os
from pathlib import Path

from stacx_core.errors import DataError
from stacx_core.swe.tasks.task import Limits, Task
from stacx_core.swe.tasks.task_file import TaskTable, read_text

_TOP = ("artifacts", "agent", "environment", "metadata", "schema_version", "solution", "source", "task", "verifier",
        "version")  # fmt: skip
_AGENT = ("allowed_hosts", "network_mode", "timeout_sec", "user")
_VERIFIER = (*_AGENT, "env", "environment", "environment_mode")
_ENVIRONMENT = ("allow_internet", "allowed_hosts", "build_timeout_sec", "cpus", "docker_image", "env", "gpu_types",
                "gpus", "healthcheck", "mcp_servers", "memory", "memory_mb", "network_mode", "skills_dir", "storage",
                "storage_mb")  # fmt: skip


def read_task(folder: Path | str) -> Task:
    """Read one task folder.

    Raises:
        DataError: A file is missing or unreadable, or a value of ``task.toml`` is wrong.
    """
    folder = Path(folder)
    for needed in ("instruction.md", "task.toml", "tests/test.sh"):
        if not (folder / needed).is_file():
            raise DataError(
                f"{folder} is no task: it has no {needed}",
                "a task has instruction.md, task.toml, tests/test.sh, and if it likes environment/ and "
                "solution/solve.sh",
            )
    for part in ("environment", "solution"):
        if (folder / part).exists() and not (folder / part).is_dir():
            raise DataError(f"{folder / part} must be a folder")
    for script in ("tests/test.sh", "solution/solve.sh"):
        _refuse_carriage_returns(folder / script)
    table = TaskTable.read(folder / "task.toml", _TOP)
    agent, verifier = table.table("agent", _AGENT), table.table("verifier", _VERIFIER)
    environment, solution = table.table("environment", _ENVIRONMENT), table.table("solution", ("env",))
    environment.refuse("gpus", "the sandboxes have no GPU")
    environment.refuse("mcp_servers", "the sandboxes start no MCP servers")
    environment.refuse("healthcheck", "the sandboxes start no services")
    return Task(
        name=_name(folder),
        folder=folder,
        instruction=_instruction(folder / "instruction.md"),
        limits=_limits(agent, verifier, environment),
        metadata=table.mapping("metadata"),
        docker_image=environment.text("docker_image"),
        env=environment.variables(),
        verifier_env=verifier.variables(),
        solution_env=solution.variables(),
    )


def read_tasks(folder: Path | str) -> list[Task]:
    """Read a folder of task folders, by name; a task folder itself is a list of one.

    Raises:
        DataError: There is no such folder, it has no task, or a task in it is malformed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    if _looks_like_a_task(folder):
        return [read_task(folder)]
    found = [read_task(inner) for inner in sorted(folder.iterdir()) if _looks_like_a_task(inner)]
    if not found:
        raise DataError(f"{folder} has no tasks: none of its folders has a task.toml")
    return found


def _looks_like_a_task(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("task.toml", "instruction.md"))


def _name(folder: Path) -> str:
    """The folder's own name, of which every list of names and every conversation can hold one a line."""
    name = os.path.basename(os.path.abspath(folder))
    if not name.isprintable() or name != name.strip() or name.startswith("#") or not name:
        raise DataError(
            f"a task cannot be called {name!r}: its name must be printable, without a space at an end or a # at the "
            "beginning"
        )
    return name


def _refuse_carriage_returns(script: Path) -> None:
    if script.is_file():
        with script.open("rb") as file:
            if file.readline().endswith(b"\r\n"):
                raise DataError(f"{script} has Windows line ends, which bash takes for parts of its commands")


def _instruction(file: Path) -> str:
    text = read_text(file).strip()
    if not text:
        raise DataError(f"{file} is empty; it is what the agent is told")
    return text


def _limits(agent: TaskTable, verifier: TaskTable, environment: TaskTable) -> Limits:
    default = Limits()
    return Limits(
        agent_timeout=agent.seconds("timeout_sec", default.agent_timeout),
        verifier_timeout=verifier.seconds("timeout_sec", default.verifier_timeout),
        build_timeout=environment.seconds("build_timeout_sec", default.build_timeout),
        cpus=environment.count("cpus", default.cpus),
        memory_mb=environment.mib("memory", default.memory_mb),
        storage_mb=environment.mib("storage", default.storage_mb),
    )
