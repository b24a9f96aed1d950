"""What the episodes of an evaluation say, per task and together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from stacx_core.swe.evaluation.estimates import Estimate, mean_estimate, pass_at_k
from stacx_core.swe.evaluation.trajectory import Trajectory


@dataclass(frozen=True)
class TaskResult:
    """The episodes of one task.

    Args:
        task: Its name.
        evaluated: Episodes that say something about the agent.
        solved: Those with the full reward.
        harness_crashed: Those whose harness crashed, solved or not.
        infrastructure_errors: Episodes that say nothing about it.
        reward_mean: Over those evaluated; None without any.
    """

    task: str
    evaluated: int
    solved: int
    harness_crashed: int
    infrastructure_errors: int
    reward_mean: float | None

    @property
    def pass_at(self) -> dict[int, float]:
        """k -> estimate, for every k that the episodes allow."""
        return {k: pass_at_k(self.evaluated, self.solved, k) for k in range(1, self.evaluated + 1)}

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), **{f"pass@{k}": value for k, value in self.pass_at.items()}}


@dataclass(frozen=True)
class Summary:
    """An evaluation as a whole.

    Args:
        tasks: One result per task.
        samples: Episodes wanted of each task.
        pass_at: k -> estimate over the tasks with at least k evaluated episodes; infrastructure errors are in no
            denominator.
        verdicts: How often each verdict was given.
        turns_mean, tokens_mean: Actions and generated tokens of an evaluated episode.
    """

    tasks: list[TaskResult]
    samples: int
    pass_at: dict[int, Estimate]
    verdicts: dict[str, int]
    turns_mean: float | None
    tokens_mean: float | None

    @property
    def complete(self) -> bool:
        """Whether every episode that was wanted says something about the agent."""
        return all(task.evaluated == self.samples for task in self.tasks)

    @property
    def harness_crashed(self) -> int:
        """Evaluated episodes whose harness crashed, solved or not."""
        return sum(task.harness_crashed for task in self.tasks)

    @property
    def infrastructure_errors(self) -> int:
        """Episodes that say nothing about the agent."""
        return sum(task.infrastructure_errors for task in self.tasks)

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "complete": self.complete,
            "tasks": len(self.tasks),
            "samples": self.samples,
            "evaluated": sum(task.evaluated for task in self.tasks),
            "solved": sum(task.solved for task in self.tasks),
            "harness_crashed": self.harness_crashed,
            "infrastructure_errors": self.infrastructure_errors,
            "confidence": 0.95,
            **{f"pass@{k}": asdict(estimate) for k, estimate in self.pass_at.items()},
            "turns_mean": self.turns_mean,
            "tokens_mean": self.tokens_mean,
            "verdicts": self.verdicts,
        }


def summarize(tasks: Sequence[str], samples: int, trajectories: Sequence[Trajectory]) -> Summary:
    """The summary of the episodes of tasks.

    Args:
        tasks: Names of all tasks.
        samples: Episodes wanted of each.
        trajectories: At most one for each of them.
    """
    results = [_result(task, [t for t in trajectories if t.task == task]) for task in tasks]
    estimates = {
        k: mean_estimate([task.pass_at[k] for task in results if k in task.pass_at]) for k in reported(samples)
    }
    evaluated = [t for t in trajectories if not t.failed]
    tokens = [[part.tokens for part in t.actions if part.tokens is not None] for t in evaluated]
    return Summary(
        results,
        samples,
        {k: estimate for k, estimate in estimates.items() if estimate is not None},
        dict(sorted(Counter(t.verdict for t in trajectories).items())),
        fmean(len(t.actions) for t in evaluated) if evaluated else None,
        fmean(map(sum, tokens)) if evaluated else None,
    )


def reported(samples: int) -> list[int]:
    """The k of pass@k: powers of two, and the number of samples."""
    return sorted({samples, *(1 << power for power in range(samples.bit_length()))})


def _result(task: str, trajectories: Sequence[Trajectory]) -> TaskResult:
    evaluated = [t for t in trajectories if not t.failed]
    return TaskResult(
        task,
        len(evaluated),
        sum(t.solved for t in evaluated),
        sum(t.crashed for t in evaluated),
        len(trajectories) - len(evaluated),
        fmean(t.reward for t in evaluated) if evaluated else None,
    )
