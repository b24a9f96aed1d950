"""What failed first, where a failure of one process makes others fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import torch.distributed as dist
from ray.exceptions import RayActorError, RayError, RayTaskError

from stacx_core.errors import StacxError, WorkerError

COLOUR = re.compile(r"\x1b\[\d+m")
"""In Ray's tracebacks."""


class Kind(IntEnum):
    """How a process failed; the lower comes before the higher."""

    RAISED = 0
    """It raised an error of its own."""
    LOST = 1
    """It died, or stopped."""
    ALONE = 2
    """Another process no longer talks to it: what that one did is the cause."""


@dataclass(frozen=True)
class Failure:
    """A process that failed.

    Attributes:
        kind: How.
        error: What the run ends with, naming role and rank.
    """

    kind: Kind
    error: StacxError

    @classmethod
    def of(cls, where: str, log: str, problem: BaseException) -> Failure:
        """The failure of a call that Ray answered with an error.

        Args:
            where: Role, rank, process and node.
            log: File of what the process printed, in the run's folder.
            problem: What Ray raised.
        """
        if isinstance(problem, RayActorError):
            told = f"what it printed is in {log} of the run's folder"
            return cls(Kind.LOST, WorkerError(f"{where} died: {_reason(problem)}", told))
        cause = problem.cause if isinstance(problem, RayTaskError) else problem
        if isinstance(cause, StacxError):
            cause.message = f"{where}: {cause.message}"
            cause.args = (cause.message, *cause.hints)
            return cls(Kind.RAISED, cause)
        kind = Kind.ALONE if _is_of_a_collective(cause) else Kind.RAISED
        if isinstance(problem, RayError) and not isinstance(problem, RayTaskError):
            return cls(Kind.LOST, WorkerError(f"{where} was lost: {str(problem).splitlines()[0]}"))
        text = str(cause).strip().splitlines()
        trace = COLOUR.sub("", str(problem)).splitlines() if isinstance(problem, RayTaskError) else ()
        return cls(kind, WorkerError(f"{where} failed: {type(cause).__name__}: {text[0] if text else ''}", *trace))

    @classmethod
    def silent(cls, where: str, seconds: float) -> Failure:
        """The failure of a process that does not answer."""
        return cls(
            Kind.LOST,
            WorkerError(
                f"{where} does not answer for {seconds:g} s: it has stopped, or its node cannot be reached",
                "--worker-timeout says how long to wait",
            ),
        )


def _is_of_a_collective(error: BaseException) -> bool:
    """Whether another process may be to blame: an error of a group of processes, as gloo and NCCL raise them."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(name in text for name in ("gloo", "NCCL", "closed by peer"))


def _reason(problem: RayActorError) -> str:
    """Why an actor died, of the many lines in which Ray tells it."""
    text = " ".join(str(problem).split())
    exited = re.search(r"Worker exit type: (\w+) Worker exit detail: (.*?)(?: Some common causes| \(\d\)|$)", text)
    if exited:
        return f"{exited[1]}: {exited[2]}"
    broken = re.search(r"RPC error: (.*?) rpc_code", text)
    return f"the connection to it broke off: {broken[1]}" if broken else text
