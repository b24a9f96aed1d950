"""Folders of tasks as environments: which task is which, and how many can be worked on at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from stacx_core.data.sources import named_options
from stacx_core.errors import ConfigError, DataError, nearest
from stacx_core.swe.agent.bash_agent import AgentSettings, BashAgent
from stacx_core.swe.sandboxes import SandboxPool, SandboxProvider, sandbox_provider
from stacx_core.swe.tasks import Task, read_tasks, tasks_fingerprint
from stacx_core.swe.tasks.task_file import read_text

HELD_OUT = "held_out.txt"
"""File of a folder of tasks that has the names of those not to train on."""
DEFAULTS = AgentSettings()
_LARGEST = 1e9
_SLACK = 60.0
"""Seconds that a call may take for what no limit of the task covers, such as copying files."""


class HarborTasks:
    """Makes the environments of tasks.

    Seed ``2 * n`` is training task number ``n`` and ``2 * n + 1`` the held-out one, counted on from the first where
    there are fewer.

    Args:
        training: Tasks to train on.
        held_out: Tasks to evaluate on.
        provider: Makes the sandboxes.
        pool: Sandboxes at a time; None for as many as the machine holds, at most four a processor.
        settings: How the agent is dealt with.
        name: Of the folder, for messages.

    Attributes:
        pool: Opens the sandboxes.
        settings: How the agent is dealt with.
        at_once: Environments at a time.
        longest_call: Seconds that a call may take by the limits of the tasks.
        num_training, num_held_out: How many tasks there are.

    Raises:
        ConfigError: The machine does not hold that many sandboxes.
    """

    def __init__(
        self,
        training: Sequence[Task],
        held_out: Sequence[Task],
        provider: SandboxProvider,
        pool: int | None = None,
        settings: AgentSettings = DEFAULTS,
        name: str = "",
    ) -> None:
        tasks = [*training, *held_out]
        self._tasks = (training, held_out)
        self.num_training, self.num_held_out = len(training), len(held_out)
        self.pool = SandboxPool(provider, pool, tasks)
        self.settings, self._name = settings, name
        limits = [(t.limits.build_timeout, t.limits.verifier_timeout, settings.command_timeout) for t in tasks]
        self.at_once = self.pool.size
        self.longest_call = max(map(max, limits), default=0.0) + _SLACK

    def __call__(self) -> BashAgent:
        """The environment of one more episode."""
        return BashAgent(self.task, self.pool, self.settings)

    def close(self) -> None:
        """End every sandbox, and open no more."""
        self.pool.close()

    def task(self, seed: int) -> Task:
        """The task of a seed.

        Raises:
            DataError: It is a held-out one and there are none, or the other way round.
        """
        tasks = self._tasks[seed % 2]
        if not tasks:
            if seed % 2 == 0:
                raise DataError(f"{self._name} has no training tasks: all are held out")
            raise DataError(
                f"{self._name} has no held-out tasks",
                f"write the names of the tasks that are held out into {self._name}/{HELD_OUT}, one a line, or name "
                "such a file as in harbor:FOLDER?held_out=FILE",
            )
        return tasks[seed // 2 % len(tasks)]


def harbor_tasks(text: str) -> HarborTasks:
    """What makes the environments of ``FOLDER[?OPTION=VALUE&...]``.

    The options are those of :class:`stacx_core.swe.agent.bash_agent.AgentSettings`, ``sandbox``, ``pool``, the number
    of sandboxes at a time, and ``held_out``, a file with the names of the tasks that are not trained on.

    Raises:
        ConfigError: An option is unknown or has a wrong value, or the sandbox is not possible.
        DataError: The folder has no tasks, or one is malformed, or the file names one that is not there.
    """
    folder, options = named_options(text)
    where = f"environment 'harbor:{text}'"
    known = {"sandbox": str, "pool": int, "held_out": str, **_SETTINGS}
    for option, value in options.items():
        _check(option, value, known, where)
    training, held_out = _parted(folder, options)
    tasks = [*training, *held_out]
    provider = sandbox_provider(options.get("sandbox", "bubblewrap"))
    for task in tasks:
        provider.check(task)
    settings = AgentSettings(**{name: value for name, value in options.items() if name in _SETTINGS})
    return HarborTasks(training, held_out, provider, options.get("pool"), settings, folder)


def harbor_contents(text: str) -> str:
    """A hash of the files of the tasks of ``FOLDER[?OPTION=VALUE&...]``, and of which are held out.

    Raises:
        DataError: The folder has no tasks, or one is malformed, or the file names one that is not there.
    """
    return ".".join(map(tasks_fingerprint, _parted(*named_options(text))))


def _parted(folder: str, options: Mapping[str, Any]) -> tuple[list[Task], list[Task]]:
    """The tasks to train on and those that are held out."""
    names = Path(options.get("held_out", Path(folder, HELD_OUT)))
    tasks = read_tasks(folder)
    held_out = named_tasks(tasks, names) if "held_out" in options or names.is_file() else []
    apart = {task.name for task in held_out}
    return [task for task in tasks if task.name not in apart], held_out


def named_tasks(tasks: Iterable[Task], names: Path) -> list[Task]:
    """The tasks that a file names, in its order.

    Args:
        tasks: All there are.
        names: Has one name a line; empty lines and those that begin with ``#`` are passed over.

    Raises:
        DataError: The file cannot be read, is empty, or names a task that is not there, or one twice.
    """
    by_name = {task.name: task for task in tasks}
    found: dict[str, Task] = {}
    for number, line in enumerate(map(str.strip, read_text(names).split("\n")), start=1):
        if not line or line.startswith("#"):
            continue
        if line not in by_name:
            raise DataError(f"{names}, line {number}: there is no task {line!r}{nearest(line, by_name)}")
        if line in found:
            raise DataError(f"{names}, line {number}: task {line!r} stands there twice")
        found[line] = by_name[line]
    if not found:
        raise DataError(f"{names} names no task")
    return list(found.values())


_SETTINGS: dict[str, type] = {field.name: type(field.default) for field in fields(AgentSettings)}


def _check(option: str, value: Any, known: dict[str, type], where: str) -> None:
    if option not in known:
        raise ConfigError(f"{where}: no option is called {option!r}{nearest(option, known)}; there are "
                          f"{', '.join(known)}")  # fmt: skip
    kind = known[option]
    right = type(value) is kind or (kind is float and type(value) is int)
    if not right or (kind in (int, float) and not 0 < value < _LARGEST):
        wanted = {bool: "true or false", str: "a text"}.get(kind, f"a number above 0 and below {_LARGEST:.0e}")
        raise ConfigError(f"{where}: {option} must be {wanted}, not {value!r}")
