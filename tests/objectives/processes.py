"""Real processes that meet over gloo, are started once, and run functions of the tests.

``python processes.py RANK RANKS FILE PIPE`` is one of them.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

START_SECONDS = 120.0
JOB_SECONDS = 60.0
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Longer than both: the one who waits for the processes ends them."""


class ProcessError(Exception):
    """A function raised in one of the processes, or they did not answer in time."""


@dataclass(frozen=True)
class Place:
    """Where a process stands in a layout of ``tensor x context`` processes, and its groups, one process each included.

    Args:
        tensor, context: sizes of the groups.
        tensor_rank, context_rank: the place in them.
        tensor_group, context_group: of torch.distributed.
    """

    tensor: int
    context: int
    tensor_rank: int
    context_rank: int
    tensor_group: Any
    context_group: Any

    def shard(self, whole: Any, lengths: list[int], padding: int = 0) -> Any:
        """The process's `ShardedOutput` of ``[T, V]``, a function of it that has a gradient.

        What pads the vocabulary, to a multiple of the TP size and by ``padding`` columns more for each process, is NaN,
        and so are the rows that pad the samples, of ``lengths`` tokens.
        """
        import torch

        from stacx_core.data.zigzag import zigzag_rows
        from stacx_core.objectives import ShardedOutput

        rows = zigzag_rows(lengths, self.context, self.context_rank)
        sources = torch.full((sum(2 * -(-n // (2 * self.context)) for n in lengths),), len(whole))
        sources[rows[rows >= 0]] = (rows >= 0).nonzero().squeeze(-1)
        width = -(-whole.shape[1] // self.tensor) + padding
        padded = torch.nn.functional.pad(whole, (0, width * self.tensor - whole.shape[1], 0, 1), value=torch.nan)
        first = self.tensor_rank * width
        local = padded[sources][:, first : first + width]
        if local.requires_grad:
            local.retain_grad()
        return ShardedOutput(local, whole.shape[1], first, self.tensor_group, rows, self.context_group)


class Processes:
    """The processes; the first function starts them, and one that fails or is late ends them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._children: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(
        self, function: Callable[..., Any], *arguments: Any, tensor: int = 1, context: int = 1, may_die: bool = False
    ) -> list[Any]:
        """What ``function(place, *arguments)`` returns in each process of the layout, in the order of ranks.

        Ranks of a TP group are neighbours. A layout of one process is run by each.

        Args:
            function: of a test module, found again by its file and name.
            arguments: what pickles without the test module.
            tensor, context: sizes of the layout.
            may_die: a process that ends answers None, and all are ended afterwards.

        Raises:
            ProcessError: with the traceback of the process that failed.
        """
        if not self._children:
            self._start()
        module = sys.modules[function.__module__]
        job = (module.__name__, module.__file__, function.__qualname__, arguments, (tensor, context))
        for pipe in self._pipes:
            send(pipe, job)
        answers = self._answers(JOB_SECONDS, may_die)
        if may_die:
            self.stop()
        return answers

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stacx-processes-")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(self.count):
            ours, theirs = Pipe()
            command = [sys.executable, __file__, str(rank), str(self.count), f"{self._folder.name}/store"]
            with theirs:
                child = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            self._children.append(child)
            self._pipes.append(ours)
        self._answers(START_SECONDS, False)

    def _answers(self, seconds: float, may_die: bool) -> list[Any]:
        answers: dict[int, Any] = {}
        end = time.monotonic() + seconds
        try:
            while len(answers) < self.count:
                waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
                ready = wait(list(waiting), max(end - time.monotonic(), 0))
                if not ready:
                    raise ProcessError(f"ranks {sorted(waiting.values())} did not answer within {seconds:g} s")
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    answers[waiting[pipe]] = self._answer(pipe, waiting[pipe], may_die)
        except BaseException:
            self.stop()
            raise
        return [answers[rank] for rank in range(self.count)]

    def _answer(self, pipe: Connection, rank: int, may_die: bool) -> Any:
        try:
            good, answer = receive(pipe)
        except (EOFError, ConnectionError):
            if may_die:
                return None
            good, answer = False, "it ended"
        if not good:
            raise ProcessError(f"rank {rank} of {self.count}: {answer}")
        return answer

    def stop(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()
            child.wait()
        for pipe in self._pipes:
            pipe.close()
        self._children, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def send(pipe: Connection, message: object) -> None:
    """Send a copy; the pipe's own way would share the memory of tensors, of processes that did not start each other."""
    pipe.send_bytes(pickle.dumps(message))


def receive(pipe: Connection) -> Any:
    """Wait for a message of `send`."""
    return pickle.loads(pipe.recv_bytes())


def serve(rank: int, ranks: int, store: str, pipe: Connection) -> None:
    """Run functions until the pipe closes."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=COLLECTIVE_TIMEOUT
    )
    sizes = [(t, c) for t in (1, 2) for c in (1, 2) if t * c in (1, ranks)]
    places = {size: _place(*size, rank, ranks) for size in sizes}
    modules: dict[str, ModuleType] = {}
    send(pipe, (True, None))
    while True:
        try:
            name, file, function, arguments, size = receive(pipe)
        except EOFError:
            return
        try:
            if name not in modules:
                modules[name] = load(name, file)
            answer = True, getattr(modules[name], function)(places[size], *arguments)
        except Exception:
            answer = False, traceback.format_exc()
        send(pipe, answer)


def _place(tensor: int, context: int, rank: int, ranks: int) -> Place:
    """The process's place; every process makes all groups, in the same order."""
    import torch.distributed as dist

    columns, rows = {}, {}
    for start in range(0, ranks, tensor * context):
        for c in range(context):
            members = [start + c * tensor + t for t in range(tensor)]
            columns |= dict.fromkeys(members, dist.new_group(members))
        for t in range(tensor):
            members = [start + c * tensor + t for c in range(context)]
            rows |= dict.fromkeys(members, dist.new_group(members))
    within = rank % (tensor * context)
    return Place(tensor, context, within % tensor, within // tensor, columns[rank], rows[rank])


def load(name: str, file: str | Path) -> ModuleType:
    """The module of a file under a name, imported anew."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Connection(int(sys.argv[4])))
