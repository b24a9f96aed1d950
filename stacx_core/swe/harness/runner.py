"""Episodes that a harness plays: it talks to the gateway and works in the sandbox, and the tests score the end."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.errors import ConfigError, StacxError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine, SamplingParams
from stacx_core.rollout.environments.loading import load_environment
from stacx_core.rollout.episodes import FAILURES, Episode, EpisodeTask, Outcome
from stacx_core.rollout.playing import RunsEpisodes, Who
from stacx_core.rollout.sampled import sequence_limit
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.protocol import Actor
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.agent.words import bounded
from stacx_core.swe.gateway.answering import GatewaySettings
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.rendering import Renderer
from stacx_core.swe.gateway.sessions import Session
from stacx_core.swe.harness.bridge import Bridge
from stacx_core.swe.harness.commands import Harness, load_harness
from stacx_core.swe.harness.processes import Ended, Processes
from stacx_core.swe.oracle import FULL_REWARD
from stacx_core.swe.sandboxes import Sandbox
from stacx_core.swe.tasks import Task
from stacx_core.swe.verifying import Verification, verify

MODEL = "policy"
"""The name under which a harness finds the model."""
EVENTS = ("solved", "unsolved", "agent_timeout", "harness_crashed")
"""How a harness's run came out: whether the tests gave the full reward, whether its time was up, and whether it ended
with another exit code than 0 though its last request was answered."""
_TAIL = 2_000
"""Characters of a harness's output that are kept."""
_SLACK = 10

logger = logging.getLogger(__name__)


def harness_runner(
    args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None, first: EpisodeTask | None = None
) -> HarnessRunner:
    """The runner of ``--harness``, once the sandbox of a task was opened to see whether that works.

    Args:
        args: The run's.
        tokenizer: Of the student.
        context_length: Of the student, when it has one.
        first: The task to begin; the first training task by default.

    Raises:
        ConfigError: The harness cannot be run, ``--environment`` names no folder of tasks, the sandbox of the first
            one cannot be opened, or the tokenizer has no chat template.
    """
    harness = load_harness(args.harness)
    make = load_environment(args.environment)
    if not isinstance(make, HarborTasks):
        raise ConfigError(
            f"--harness works on the tasks of --environment harbor:FOLDER, not in {args.environment}; drop one of them"
        )
    Renderer(tokenizer)
    try:
        with make.pool.open(make.task((first or training_task(args, 0, 0)).seed)):
            pass
    except StacxError as error:
        told = f"--environment {args.environment}: its first task fails: {error.message}"
        raise ConfigError(told, *error.hints) from error
    return HarnessRunner(args, tokenizer, context_length, harness, make)


class HarnessRunner(RunsEpisodes):
    """Has a harness play episodes, as many at a time as there may be sandboxes.

    Each has a session of the gateway, which names who answers, and a sandbox. When the harness is gone, whether it
    ended by itself or not, the tests say what its work was worth. An episode is not trained on when the model or the
    sandbox failed, when a signal ended the harness, or when the harness never got an answer.

    Args:
        args: The run's.
        tokenizer: Of the student, with a chat template.
        context_length: Of the student, when it has one.
        harness: What to run.
        make: The tasks and their sandboxes.
    """

    def __init__(
        self,
        args: Args,
        tokenizer: PreTrainedTokenizerBase,
        context_length: int | None,
        harness: Harness,
        make: HarborTasks,
    ) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.limit = sequence_limit(args, context_length)
        self.harness = harness
        self.make = make

    def play(
        self,
        tasks: Sequence[EpisodeTask],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> Iterator[tuple[int, Episode]]:
        """See :class:`stacx_core.rollout.playing.RunsEpisodes`.

        Raises:
            StacxError: The engine or the teacher raised it; the harnesses are ended.
        """
        settings = GatewaySettings(MODEL, params, self.limit, self.args.seed, max_turns=self.args.max_turns)
        with ExitStack() as held:
            gateway = held.enter_context(Gateway(settings, self.tokenizer, engine, teacher, who))
            threads = ThreadPoolExecutor(self.make.at_once)
            held.callback(threads.shutdown, cancel_futures=True)
            processes = held.enter_context(Processes())
            places = {
                threads.submit(self._played, task, gateway, processes, rollout): place
                for place, task in enumerate(tasks)
            }
            waiting: set[Future[Any]] = set(places)
            while waiting:
                done, _ = wait([*waiting, gateway.failed], return_when=FIRST_COMPLETED)
                if gateway.failed in done:
                    gateway.failed.result()
                waiting -= done
                yield from ((places[episode], episode.result()) for episode in done)

    def _played(self, task: EpisodeTask, gateway: Gateway, processes: Processes, rollout: int) -> Episode:
        session = gateway.open(task, rollout)
        try:
            episode = self._worked(session, self.make.task(task.seed), gateway, processes)
        except Exception as error:  # Whatever an episode fails by, the others go on.
            episode = gateway.finish(session, 0.0, "env_error", f"{type(error).__name__}: {error}")
            episode.counts[type(error).__name__] += 1
        return episode

    def _worked(self, session: Session, task: Task, gateway: Gateway, processes: Processes) -> Episode:
        with self.make.pool.open(task) as sandbox:
            ended = self._ran(session, task, sandbox, gateway.key, processes)
            outcome, error = _outcome(session, ended)
            scored = None if outcome in FAILURES else verify(sandbox, task)
        reward = scored.reward if scored else 0.0
        episode = gateway.finish(session, reward, outcome, error)
        happened = {
            "solved": scored is not None and reward >= FULL_REWARD,
            "unsolved": scored is not None and reward < FULL_REWARD,
            "agent_timeout": ended.timed_out,
            "harness_crashed": ended.exit_code != 0 and not ended.timed_out and session.trouble is None,
        }
        episode.counts.update({name: int(happened[name]) for name in EVENTS})
        episode.last_words = _last_words(ended, scored)
        return episode

    def _ran(self, session: Session, task: Task, sandbox: Sandbox, key: str, processes: Processes) -> Ended:
        """Run the harness to its end; raises ``SandboxError`` when its sandbox was lost."""
        seconds = self.args.harness_timeout or task.limits.agent_timeout
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
