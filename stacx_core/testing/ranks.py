"""Real processes that compute something together; started once for all recipes.

`python -m stacx_core.testing.ranks RANK RANKS FILE` is one of them. It reads pickled jobs from its standard input, each
with the path to import from, runs them in a gloo group with the others, and writes the pickled results.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.errors import StacxError
from stacx_core.plugin_selection import ENABLE_VARIABLE
from stacx_core.plugins import HOST, plugin_host
from stacx_core.testing.subject import Outcome, Subject

RANKS = 2
ANSWER_SECONDS = 60.0
"""How long the ranks may take over one step."""
START_SECONDS = 300.0
"""How long they may take to import torch and to meet."""
DYING_SECONDS = 5.0
"""How long a rank is given to notice that another has died."""
NOTICED_SECONDS = 0.5
"""By how much others may notice that a rank has died before its exit code is known."""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Longer than both: the one who waits for the ranks ends them."""


class Job(Protocol):
    """Something that the processes do together. It pickles."""

    def run(self, rank: int, ranks: int) -> Any:
        """What process ``rank`` of so many answers; it may use collectives of the default group."""


@dataclass(frozen=True)
class StepJob:
    """The loss of a step whose micro-batches the processes share: a subject, its prepared batch, the outputs."""

    subject: Subject
    batch: Batch
    outputs: Mapping[int, Tensor]
    micro_batch_size: int

    def run(self, rank: int, ranks: int) -> Outcome:
        """Gradients, losses and sums of metrics added over the ranks."""
        share = rank, ranks
        own = self.subject.step(self.batch, self.outputs, share=share, micro_batch_size=self.micro_batch_size)
        return _summed(own, ranks)


class RankError(StacxError, RuntimeError):
    """A job failed in one of the processes."""


class Ranks:
    """The processes; a context manager that ends them. The first job starts them, or `start` does ahead of it.

    Args:
        seconds: how long they may take over one job; those that take longer are ended, and the next job starts
            new ones.
        size: how many there are.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS, size: int = RANKS) -> None:
        self._seconds = seconds
        self._size = size
        self._ready = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the processes unless they run."""
        if self._processes:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="stacx-ranks-")
        meeting = Path(self._folder.name) / "store"
        loaded = [record.distribution for record in plugin_host().records if record.status == "loaded"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": "1",
            ENABLE_VARIABLE: ",".join(name for name in loaded if name != HOST.distribution),
        }
        command = [sys.executable, "-m", __name__]
        for rank in range(self._size):
            arguments = [*command, str(rank), str(self._size), str(meeting)]
            self._processes.append(
                subprocess.Popen(arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )

    def run(self, job: Job) -> list[Any]:
        """What each rank answers.

        Raises:
            RankError: a rank raised, died, or did not answer in time.
        """
        self.start()
        if not self._ready:
            self._exchange(None, START_SECONDS)
            self._ready = True
        return self._exchange((sys.path, pickle.dumps(job)), self._seconds)

    def _exchange(self, message: object, seconds: float) -> list[Any]:
        """Send each rank the message, unless it is None, and wait for the answers; if one fails all are ended."""
        late = threading.Event()
        alarm = threading.Timer(seconds, self._expire, (late,))
        alarm.start()
        try:
            if message is not None:
                for process in self._processes:
                    assert process.stdin is not None
                    pickle.dump(message, process.stdin)
                    process.stdin.flush()
            return self._answers()
        except (EOFError, OSError, pickle.UnpicklingError):
            size = self._size
            problem = f"hangs: the {size} ranks did not answer within {seconds:g} s" if late.is_set() else self._end()
            raise RankError(problem) from None
        except BaseException:  # Half an exchange would give its answer to the next one.
            self.stop()
            raise
        finally:
            alarm.cancel()
            if late.is_set():
                self.stop()

    def _answers(self) -> list[Any]:
        """One of each rank, as they come: after an error the others may wait for a rank that is no longer with them.

        Raises:
            RankError: a rank answers with an error.
        """
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                waiting.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < self._size:
                for key, _ in waiting.select():
                    answers[key.data], error = pickle.load(cast(BinaryIO, key.fileobj))
                    waiting.unregister(key.fileobj)
                    if error is not None:
                        self._look_for_the_dead(answers)
                        raise RankError(f"rank {key.data} of {self._size} failed: {error}")
        return [answers[rank] for rank in range(self._size)]

    def _look_for_the_dead(self, answered: Collection[int]) -> None:
        """Of a rank that died, the others only tell that it no longer talks to them.

        Raises:
            EOFError: one has died.
        """
        for rank, process in enumerate(self._processes):
            if rank not in answered:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(NOTICED_SECONDS)
                    raise EOFError

    def _expire(self, late: threading.Event) -> None:
        late.set()
        for process in self._processes:
            process.kill()

    def _end(self) -> str:
        """End the ranks, of which one has died, and say with which exit codes; the others soon die of its death."""
        codes: dict[int, int] = {}
        for rank, process in enumerate(self._processes):
            with suppress(subprocess.TimeoutExpired):
                codes[rank] = process.wait(DYING_SECONDS)
        self.stop()
        return "; ".join(f"rank {rank} of {self._size} ended with exit code {code}" for rank, code in codes.items())

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self._processes = []
        self._ready = False
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def serve(rank: int, ranks: int, meeting: str) -> None:
    """Answer jobs until the input ends; what plugins print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=COLLECTIVE_TIMEOUT
    )
    pickle.dump(("ready", None), answers)
    answers.flush()
    while True:
        try:
            sys.path[:], parcel = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(_answer(parcel, rank, ranks), answers)
        answers.flush()
    dist.destroy_process_group()


def _answer(parcel: bytes, rank: int, ranks: int) -> tuple[Any, str | None]:
    """What the job answers, and what went wrong."""
    try:
        job: Job = pickle.loads(parcel)
        return job.run(rank, ranks), None
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return None, f"{type(problem).__name__}: {problem}"


def _summed(own: Outcome, ranks: int) -> Outcome:
    """Gradients, losses and sums of metrics added over the ranks."""
    shapes: list[Any] = [None] * ranks
    dist.all_gather_object(shapes, {name: tuple(value.shape) for name, value in own.metrics.items()})
    known = {name: shape for of_rank in shapes for name, shape in of_rank.items()}
    metrics = {name: own.metrics.get(name, torch.zeros(known[name], dtype=torch.float64)) for name in sorted(known)}
    loss = torch.tensor(own.loss, dtype=torch.float64)
    for value in (loss, *own.gradients.values(), *metrics.values()):
        dist.all_reduce(value)
    return replace(own, loss=float(loss), metrics=metrics, returned=())


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
