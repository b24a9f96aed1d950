"""Tries tasks out: the solution must earn the full reward, and an agent that does nothing must not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from stacx_core.errors import StacxError
from stacx_core.swe.sandboxes.pool import SandboxPool
from stacx_core.swe.sandboxes.sandbox import CommandResult, SandboxProvider
from stacx_core.swe.tasks import Task
from stacx_core.swe.verifying import Verification, solve, verify

FULL_REWARD = 1.0


@dataclass(frozen=True)
class Trial:
    """How one task did.

    Args:
        task: Its name.
        oracle: Reward after the solution; None if there is no solution or no reward.
        empty: Reward of doing nothing; None if there is none.
        seconds: For both together.
        problem: What went wrong, or "".
    """

    task: str
    oracle: float | None
    empty: float | None
    seconds: float
    problem: str = ""

    @property
    def sound(self) -> bool:
        """Whether the solution earns everything and doing nothing does not."""
        return self.oracle == FULL_REWARD and self.empty is not None and self.empty < FULL_REWARD

    def __str__(self) -> str:
        verdict = "ok" if self.sound else "NOT SOUND"
        rewards = f"oracle {_shown(self.oracle)}, empty {_shown(self.empty)}"
        return f"{self.task}: {verdict} ({rewards}, {self.seconds:.1f} s)" + (
            f"\n  {self.problem}" * bool(self.problem)
        )


def try_out(
    tasks: Sequence[Task], provider: SandboxProvider, jobs: int = 1, tell: Callable[[Trial], object] = str
) -> list[Trial]:
    """Try out tasks, several at a time; each is told as it ends.

    Raises:
        ConfigError: This machine does not hold that many sandboxes.
    """
    pool = SandboxPool(provider, min(jobs, max(1, len(tasks))), tasks)

    def one(task: Task) -> Trial:
        trial = _trial(task, pool)
        tell(trial)
        return trial

    with ThreadPoolExecutor(pool.size) as threads, closing(pool):
        return list(threads.map(one, tasks))


def _trial(task: Task, pool: SandboxPool) -> Trial:
    begun = time.monotonic()
    rewards: list[float | None] = []
    problems = [] if task.solution else ["it has no solution/solve.sh"]
    for solved in (True, False):
        who, reward = "oracle" if solved else "empty", None
        try:
            if task.solution or not solved:
                solution, verification = _played(task, pool, solved)
                reward = verification.reward
                if solved and reward != FULL_REWARD:
                    problems += [f"{who}: {line}" for line in _why(solution, verification)]
        except (StacxError, OSError) as error:
            problems.append(f"{who}: {error}")
        rewards.append(reward)
    return Trial(task.name, rewards[0], rewards[1], time.monotonic() - begun, "\n  ".join(problems))


def _played(task: Task, pool: SandboxPool, solved: bool) -> tuple[CommandResult | None, Verification]:
    with pool.open(task) as sandbox:
        return solve(sandbox, task) if solved else None, verify(sandbox, task)


def _why(solution: CommandResult | None, verification: Verification) -> list[str]:
    """The last lines of what the solution said if it failed, and of what the tests said."""
    said = verification.output.strip().splitlines()[-3:]
    if solution is not None and solution.exit_code:
        last = solution.output.strip().splitlines()[-3:]
        said = [f"solve.sh ended with exit code {solution.exit_code}", *last, *said]
    return said


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"
