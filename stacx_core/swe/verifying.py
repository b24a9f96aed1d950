"""Scores what an agent did: the tests come into its sandbox when the agent is gone, and leave one number."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.errors import VerificationError
from stacx_core.swe.sandboxes.sandbox import LOGS, SOLUTION, TESTS, CommandResult, Sandbox
from stacx_core.swe.tasks import Task

REWARD_FILE = f"{LOGS}/verifier/reward.txt"
MOST = 1e6
"""No reward is larger, with either sign: the code that is tested can write any, and one that overflows ends a run."""
_LONGEST = 64


@dataclass(frozen=True)
class Verification:
    """What the tests said.

    Args:
        reward: The number that they wrote, from ``-MOST`` to ``MOST``; 0 where they were ended at a limit.
        output: What they printed.
        over_limit: What they used too much of, such as "time", or "".
    """

    reward: float
    output: str
    over_limit: str = ""


def verify(sandbox: Sandbox, task: Task) -> Verification:
    """End the agent, run the tests of a task in its sandbox, and read the reward that they wrote.

    Tests that take too long or use too much run code that does, as with an endless loop that the agent wrote: this is a
    reward of 0, or not being trained on could be had at will.

    Raises:
        VerificationError: The tests wrote something that is no single number from ``-MOST`` to ``MOST``. This says
            nothing of the agent's work and is not the same as a reward of 0.
        SandboxError: The sandbox is gone.
    """
    sandbox.end_processes()
    sandbox.empty(TESTS, LOGS)
    try:
        sandbox.copy_in(task.tests, TESTS)
        # A home of its own: what the agent left in its own one must not run with the tests.
        sandbox.write(f"{LOGS}/home/.keep", b"")
        sandbox.write(f"{LOGS}/verifier/.keep", b"")
    except OSError as error:
        raise VerificationError(f"the tests of {task.name} cannot be copied in: {error}") from error
    env = {**task.verifier_env, "HOME": f"{LOGS}/home"}
    result = sandbox.run(f"bash {TESTS}/test.sh", task.limits.verifier_timeout, env)
    sandbox.end_processes()
    if result.limit:
        told = f"{result.output.rstrip()}\n[the tests were ended for their use of {result.limit}]"
        return Verification(0.0, told.lstrip(), result.limit)
    return Verification(_reward(sandbox, task, result), result.output)


def solve(sandbox: Sandbox, task: Task) -> CommandResult:
    """Run the solution of a task in its sandbox.

    Raises:
        ValueError: The task has none.
        SandboxError: The sandbox is gone.
        OSError: The solution cannot be copied in.
    """
    if task.solution is None:
        raise ValueError(f"{task.folder} has no solution/solve.sh")
    sandbox.copy_in(task.solution, SOLUTION)
    return sandbox.run(f"bash {SOLUTION}/solve.sh", task.limits.agent_timeout, task.solution_env)


def _reward(sandbox: Sandbox, task: Task, result: CommandResult) -> float:
    result_file = f"{REWARD_FILE} of {task.name}"
    try:
        text = sandbox.read(REWARD_FILE, _LONGEST).decode(errors="replace").strip()
    except OSError as error:
        raise VerificationError(
            f"{result_file} cannot be read: {error.strerror}; test.sh ended with exit code {result.exit_code}",
            *_last_lines(result),
        ) from error
    try:
        reward = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        reward = None
    if reward is None or not -MOST <= reward <= MOST:
        raise VerificationError(
            f"{result_file} must hold one number from -{MOST:.0f} to {MOST:.0f}, not {text!r}", *_last_lines(result)
        )
    return reward


def _last_lines(result: CommandResult) -> list[str]:
    return result.output.strip().splitlines()[-3:]
