"""Run a function on several processes that form a gloo group."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

SECONDS = 240.0
"""Most that a call may take before its processes are killed."""


class ProcessError(AssertionError):
    """A process raised, died, or did not end in time; names the first."""


def spawn(world_size: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[Any]:
    """What the function, defined at the top of a module, returns on each rank.

    On a rank, ``torch.distributed`` is initialised with gloo before the call. As soon as one process fails, the others
    are killed.

    Raises:
        ProcessError: With the traceback of the first process that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        module = sys.modules[function.__module__].__file__
        job.write_bytes(pickle.dumps((module, function.__name__, pickle.dumps(args))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        processes = []
        try:
            for rank in range(world_size):
                with (Path(folder) / f"log{rank}").open("wb") as log:
                    command = [sys.executable, __file__, folder, str(rank), str(world_size)]
                    processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            _wait(processes, time.monotonic() + seconds, Path(folder))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [pickle.loads((Path(folder) / f"result{rank}").read_bytes()) for rank in range(world_size)]


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float, folder: Path) -> None:
    """Until all have ended well.

    Raises:
        ProcessError: One has not.
    """
    running = dict(enumerate(processes))
    while running:
        for rank, process in list(running.items()):
            try:
                code = process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    late = next((r for r in running if not (folder / f"result{r}").exists()), rank)
                    raise ProcessError(f"rank {late} did not end in time\n{_log(folder, late)}") from None
                continue
            del running[rank]
            if code:
                first = _first_failed(folder, rank)
                raise ProcessError(f"rank {first} failed\n{_log(folder, first)}")


def _first_failed(folder: Path, rank: int) -> int:
    """The rank whose error came first: others may fail for its absence."""
    failures = sorted((path.stat().st_mtime_ns, int(path.name[6:])) for path in folder.glob("failed*"))
    return failures[0][1] if failures else rank


def _log(folder: Path, rank: int) -> str:
    return (folder / f"log{rank}").read_text(errors="replace")[-6000:]


def _run(folder: Path, rank: int, world_size: int) -> None:
    import torch
    import torch.distributed as dist

    path, name, args = pickle.loads((folder / "job").read_bytes())
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
    )
    sys.path.insert(0, str(Path(path).parent))
    module = importlib.import_module(Path(path).stem)
    try:
        result = getattr(module, name)(*pickle.loads(args))
    except BaseException:
        (folder / f"failed{rank}").touch()
        raise
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
