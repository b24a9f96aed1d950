"""Episodes that a harness plays: it talks to a model's endpoint and works in a sandbox, and the tests score the end."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from stacx_core.errors import EpisodeError
from stacx_core.rollout.episodes import FAILURES, Episode, EpisodeTask, Outcome
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.agent.words import bounded
from stacx_core.swe.gateway.gateway import SessionServer
from stacx_core.swe.gateway.sessions import Session
from stacx_core.swe.harness.bridge import Bridge
from stacx_core.swe.harness.commands import Harness
from stacx_core.swe.harness.processes import HARNESS_CRASHED, Ended, Processes
from stacx_core.swe.oracle import FULL_REWARD
from stacx_core.swe.sandboxes import Sandbox
from stacx_core.swe.side_by_side import side_by_side
from stacx_core.swe.tasks import Task
from stacx_core.swe.verifying import Verification, verify

MODEL = "policy"
"""The name under which a harness finds the model."""
EVENTS = ("solved", "unsolved", "tests_over_limit", "agent_timeout", HARNESS_CRASHED)
"""How a harness's run came out: whether the tests gave the full reward or were ended at a limit, whether its time was
up, and whether it ended with another exit code than 0 though its last request was answered."""
_TAIL = 2_000
"""Characters of a harness's output that are kept."""
_SLACK = 10


class HarnessEpisodes:
    """Has a harness play episodes, as many at a time as there may be sandboxes.

    Each has a session of the server and a sandbox. When the harness is gone, whether it ended by itself or not, the
    tests say what its work was worth. An episode is a failure of nobody's when the model or the sandbox failed, when a
    signal ended the harness, or when the harness never got an answer.

    Args:
        harness: What to run.
        make: The tasks and their sandboxes.
        seconds: After which a harness is ended; None for what its task says.
    """

    def __init__(self, harness: Harness, make: HarborTasks, seconds: float | None) -> None:
        self.harness = harness
        self.make = make
        self.seconds = seconds
        self._stopped: Future[Any] = Future()

    def play(self, tasks: Sequence[EpisodeTask], server: SessionServer, rollout: int) -> Iterator[tuple[int, Episode]]:
        """The episodes as they end, each with the place of its task.

        What breaks this off, such as an interrupt, ends the harnesses and the sandboxes, and the pool opens no more.

        Args:
            tasks: What to play.
            server: Serves the model.
            rollout: Number of the rollout.

        Raises:
            StacxError: The model raised it, and all sessions end.
            EpisodeError: This was stopped.
        """
        with ExitStack() as held:
            processes = Processes()
            calls = [partial(self._played, task, server, processes, rollout) for task in tasks]
            places = {future: place for place, future in enumerate(side_by_side(calls, self.make.at_once))}
            held.callback(_await, places)
            broken_off = held.enter_context(ExitStack())
            broken_off.callback(self.make.pool.close)
            held.enter_context(processes)
            waiting: set[Future[Any]] = set(places)
            while waiting:
                done, _ = wait([*waiting, server.failed, self._stopped], return_when=FIRST_COMPLETED)
                for failed in done & {server.failed, self._stopped}:
                    failed.result()
                waiting -= done
                yield from ((places[episode], episode.result()) for episode in done)
            broken_off.pop_all()

    def stop(self) -> None:
        """Break off what is played, from another thread, which then raises ``EpisodeError``; nothing more is played."""
        with suppress(InvalidStateError):
            self._stopped.set_exception(EpisodeError("the episodes were broken off"))

    def _played(self, task: EpisodeTask, server: SessionServer, processes: Processes, rollout: int) -> Episode:
        session = server.open(task, rollout)
        try:
            episode = self._worked(session, self.make.task(task.seed), server, processes)
        except Exception as error:  # Whatever an episode fails by, the others go on.
            episode = server.finish(session, 0.0, "env_error", f"{type(error).__name__}: {error}")
            episode.counts[type(error).__name__] += 1
        return episode

    def _worked(self, session: Session, task: Task, server: SessionServer, processes: Processes) -> Episode:
        with self.make.pool.open(task) as sandbox:
            ended = self._ran(session, task, sandbox, server.key, processes)
            outcome, error = _outcome(session, ended)
            scored = None if outcome in FAILURES else verify(sandbox, task)
        reward = scored.reward if scored else 0.0
        episode = server.finish(session, reward, outcome, error)
        happened = {
            "solved": scored is not None and reward >= FULL_REWARD,
            "unsolved": scored is not None and reward < FULL_REWARD,
            "tests_over_limit": scored is not None and scored.over_limit != "",
            "agent_timeout": ended.timed_out,
            HARNESS_CRASHED: ended.exit_code != 0 and not ended.timed_out and session.trouble is None,
        }
        episode.counts.update({name: int(happened[name]) for name in EVENTS})
        episode.last_words = _last_words(ended, scored)
        return episode

    def _ran(self, session: Session, task: Task, sandbox: Sandbox, key: str, processes: Processes) -> Ended:
        """Run the harness to its end; raises ``SandboxError`` when its sandbox was lost."""
        seconds = self.seconds or task.limits.agent_timeout
        longest = self.make.settings.command_timeout
        with tempfile.TemporaryDirectory(prefix="stacx-harness-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            asked = folder / "task.md"
            asked.write_text(task.instruction, encoding="utf-8")
            with Bridge(sandbox, folder, longest, time.monotonic() + seconds) as bridge:
                values = {
                    **{"task": task.name, "instruction": task.instruction, "task_file": str(asked)},
                    **{"folder": name, "sandbox": str(bridge.program), "workdir": sandbox.workdir},
                    **{"longest_command": str(math.ceil(longest) + _SLACK), "model": MODEL},
                    **{"base_url": session.base_url, "key": key},
                }
                command, env = self.harness.command(values), self.harness.environment(values)
                ended = processes.run(command, folder, env, seconds)
        if bridge.failure is not None:
            raise bridge.failure
        return ended


def _await(episodes: Iterable[Future[Episode]]) -> None:
    """Begin no further episodes, and wait for those under way."""
    wait([episode for episode in episodes if not episode.cancel()])


def _outcome(session: Session, ended: Ended) -> tuple[Outcome, str]:
    """How the run counts, and what went wrong."""
    if session.trouble is not None:
        return session.trouble
    how = "took too long" if ended.timed_out else f"ended with exit code {ended.exit_code}"
    told = f"the harness {how}: {ended.output.strip()[-_TAIL:]}"
    if not session.answered:
        return "env_error", f"no request was answered; {told}"
    if ended.timed_out:
        return "turn_limit", ""
    if ended.exit_code > 128:
        return "env_error", told
    return "done", told if ended.exit_code else ""


def _last_words(ended: Ended, scored: Verification | None) -> str:
    late = " (it took too long)" if ended.timed_out else ""
    harness = f"harness: exit code {ended.exit_code}{late}\n<output>\n{bounded(ended.output, _TAIL)}\n</output>"
    if scored is None:
        return harness
    return f"{harness}\nreward: {scored.reward:g}\n<tests>\n{bounded(scored.output, _TAIL)}\n</tests>"
