"""What this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def machine_memory() -> int:
    """Bytes of memory that this process and its children may use: the machine's, or the limit of a control group."""
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return min(int(total.split()[1]) << 10, *memory_limits(Path("/proc/self/cgroup").read_text(), _GROUPS))


def memory_limits(groups: str, root: Path) -> Iterator[int]:
    """Limits in bytes of the control groups that a process is in, and of those around them.

    Args:
        groups: What ``/proc/PID/cgroup`` says, of the first or the second version or both.
        root: Where control groups are mounted.
    """
    yield 1 << 62
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        place = base / group.lstrip("/")
        for folder in (place, *place.parents):
            file = folder / name
            # In a container its own group is mounted at the root, and the path leads nowhere.
            if folder.is_relative_to(base) and file.is_file() and (text := file.read_text().strip()).isdigit():
                yield int(text)


def processors() -> list[int]:
    """The processors that this process may run on."""
    return sorted(os.sched_getaffinity(os.getpid()))
