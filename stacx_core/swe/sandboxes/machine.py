"""What this machine has."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of a container, in the second and the first version of control groups."""


def machine_memory() -> int:
    """Bytes of memory that this process and its children may use: the machine's, or a container's limit."""
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    found = [int(total.split()[1]) << 10]
    for place in map(Path, _LIMITS):
        text = place.read_text().strip() if place.is_file() else ""
        if text.isdigit():
            found.append(int(text))
    return min(found)


def processors() -> list[int]:
    """The processors that this process may run on."""
    return sorted(os.sched_getaffinity(os.getpid()))
