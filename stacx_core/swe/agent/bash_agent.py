"""The environment of one episode: a task in a sandbox, acted on by bash commands."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from stacx_core.data.sample import Message
from stacx_core.errors import VerificationError
from stacx_core.rollout.environment import Observation, Step
from stacx_core.swe.agent.actions import SUBMIT, MalformedAction, command_of
from stacx_core.swe.agent.words import SYSTEM, first_words, refusal_words, result_words, verified_words
from stacx_core.swe.oracle import FULL_REWARD
from stacx_core.swe.sandboxes import Sandbox, SandboxPool
from stacx_core.swe.tasks import Task
from stacx_core.swe.verifying import Verification, verify

ENDINGS = ("solved", "unsolved", "malformed", "agent_timeout")
"""How the environment ends an episode: submitted with the full reward or without, too many malformed actions in a
row, or the agent's time used up."""
EVENTS = ("malformed_actions", "command_timeouts", "tests_over_limit")


@dataclass(frozen=True)
class AgentSettings:
    """How the agent is dealt with.

    Args:
        command_timeout: Seconds for one command.
        output: Characters of a command's output that are shown.
        patience: Malformed actions in a row that end the episode.
        system: Whether the conversation begins with a system message; otherwise its text begins the user's.
    """

    command_timeout: float = 30.0
    output: int = 10_000
    patience: int = 3
    system: bool = True


class BashAgent:
    """An environment in which a task is worked on.

    An action is one block of bash, which runs in the sandbox; the block ``submit`` has the tests run, and their number
    is the reward. Malformed actions are answered, and end the episode when there are too many in a row. Only the time
    of commands counts as the agent's, so that an episode does not depend on how busy the model is. Whatever ends an
    episode without ``submit`` leaves a reward of 0.

    Args:
        choose: The task of a seed.
        pool: Opens the sandboxes.
        settings: How the agent is dealt with.
    """

    def __init__(self, choose: Callable[[int], Task], pool: SandboxPool, settings: AgentSettings) -> None:
        self._choose, self._pool, self._settings = choose, pool, settings
        self._held = ExitStack()
        # One whose call took too long is given up by its caller, and closes when that call has returned.
        self._abandoned = weakref.finalize(self, self._held.close)
        self._log: list[str] = []

    def reset(self, seed: int) -> Observation:
        """Open a sandbox of the seed's task; returns the conversation that tells the agent what to do.

        Raises:
            DataError: There is no task for the seed, or its environment is not possible here.
            SandboxError: The sandbox cannot be made.
        """
        self._task = self._choose(seed)
        self._sandbox: Sandbox = self._held.enter_context(self._pool.open(self._task))
        self._seconds, self._malformed = self._task.limits.agent_timeout, 0
        words = first_words(self._task, self._sandbox.workdir, self._settings.command_timeout)
        self._log = [words]
        if not self._settings.system:
            return f"{SYSTEM}\n\n{words}"
        return [Message(role="system", content=SYSTEM), Message(role="user", content=words)]

    def step(self, action: str) -> Step:
        """Run the command of an action, or answer a malformed one.

        Raises:
            SandboxError: The sandbox is gone.
            VerificationError: The tests gave no reward.
        """
        self._log.append(action)
        try:
            command = command_of(action)
        except MalformedAction as problem:
            return self._shown(self._refused(str(problem)))
        self._malformed = 0
        if command.strip() == SUBMIT:
            return self._shown(self._scored(self._verified()))
        return self._shown(self._ran(command))

    def render(self) -> str:
        """The conversation so far."""
        return "\n\n".join(self._log)

    def close(self) -> None:
        """End the sandbox."""
        self._abandoned()

    def _refused(self, problem: str) -> Step:
        self._malformed += 1
        left = self._settings.patience - self._malformed
        if left == 0:
            return _ended("malformed", event="malformed_actions")
        return Step(refusal_words(problem, left), counts=_counts("malformed_actions"))

    def _ran(self, command: str) -> Step:
        seconds = min(self._settings.command_timeout, self._seconds)
        begun = time.monotonic()
        result = self._sandbox.run(command, seconds)
        self._seconds -= time.monotonic() - begun
        event = "command_timeouts" if result.timed_out else ""
        if self._seconds <= 0:
            return _ended("agent_timeout", event=event)
        return Step(result_words(result, seconds, self._settings.output), counts=_counts(event))

    def _verified(self) -> Verification:
        try:
            return verify(self._sandbox, self._task)
        except OSError as error:
            raise VerificationError(f"the tests of {self._task.name} could not be run: {error}") from error

    def _scored(self, verification: Verification) -> Step:
        reward = verification.reward
        said = verified_words(reward, verification.output, self._settings.output)
        event = "tests_over_limit" if verification.over_limit else ""
        return _ended("solved" if reward >= FULL_REWARD else "unsolved", reward, event, said)

    def _shown(self, step: Step) -> Step:
        self._log.append(str(step.observation))
        return step


def _ended(ending: str, reward: float = 0.0, event: str = "", said: str = "") -> Step:
    return Step(said or ending, reward, done=True, counts=_counts(ending, event))


def _counts(*happened: str) -> dict[str, int]:
    """Everything that can happen with how often it did, so that what did not is reported as 0."""
    return {name: int(name in happened) for name in (*ENDINGS, *EVENTS)}
