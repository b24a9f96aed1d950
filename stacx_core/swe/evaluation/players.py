"""Who plays the episodes of an evaluation: a checkpoint in this process, or a model behind an endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Protocol

from transformers.utils.logging import disable_progress_bar

from stacx_core.backends.model import DTYPES, context_length, load_model, load_tokenizer, pick_device, stop_ids
from stacx_core.data.sample import Message
from stacx_core.errors import EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episode_runner import EpisodeRunner
from stacx_core.rollout.episodes import Episode, EpisodeTask
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.playing import student_only
from stacx_core.seeds import sub_seed
from stacx_core.swe.agent.bash_agent import BashAgent
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.agent.words import SYSTEM
from stacx_core.swe.evaluation.endpoint import ContextOverflow, Endpoint
from stacx_core.swe.evaluation.trajectory import ENDPOINT_FAILED, Part, Trajectory
from stacx_core.swe.harness.commands import load_harness
from stacx_core.swe.harness.runner import HarnessRunner


class Player(Protocol):
    """Plays episodes."""

    def play(self, tasks: Sequence[EpisodeTask]) -> Iterator[Trajectory]:
        """The episodes of tasks, as they end."""


class CheckpointPlayer:
    """A checkpoint on the embedded engine, by the same turns and tokens as in training.

    Args:
        args: With ``hf_checkpoint`` and whatever says how to sample.
        make: The environments.
        params: Of the sampling.

    Raises:
        ModelError: The checkpoint cannot be used.
    """

    def __init__(self, args: Args, make: HarborTasks, params: SamplingParams) -> None:
        disable_progress_bar()
        tokenizer = load_tokenizer(args.hf_checkpoint)
        model = load_model(args.hf_checkpoint, DTYPES[args.dtype], pick_device(args.device))
        self._engine = LocalEngine(model, stop_ids(model, tokenizer), args.rollout_max_running)
        args = args.replace(env_workers=make.at_once)
        # A turn has the user's message alone; what a harness says before it is not known here.
        self._opening = [Part("environment", SYSTEM)] if args.harness is None else []
        length = context_length(args.hf_checkpoint)
        self._runner = (
            EpisodeRunner(args, tokenizer, length, make)
            if args.harness is None
            else HarnessRunner(args, tokenizer, length, load_harness(args.harness), make)
        )
        self._params = params

    def play(self, tasks: Sequence[EpisodeTask]) -> Iterator[Trajectory]:
        """See :class:`Player`."""
        played = self._runner.play(tasks, self._engine, None, student_only, self._params, rollout=-1)
        for _, episode in played:
            trajectory = Trajectory.of_episode(episode)
            yield replace(trajectory, parts=[*self._opening, *trajectory.parts])


class EndpointPlayer:
    """A model behind an endpoint; every episode has a thread of its own.

    Args:
        endpoint: The model.
        make: The environments.
        params: Of the sampling.
        max_turns: Most actions of an episode.
        seed: Of the run.
    """

    def __init__(
        self, endpoint: Endpoint, make: HarborTasks, params: SamplingParams, max_turns: int, seed: int
    ) -> None:
        self._endpoint, self._make, self._params = endpoint, make, params
        self._max_turns, self._seed = max_turns, seed

    def play(self, tasks: Sequence[EpisodeTask]) -> Iterator[Trajectory]:
        """See :class:`Player`."""
        threads = ThreadPoolExecutor(self._make.at_once)
        try:
            for done in as_completed([threads.submit(self._episode, task) for task in tasks]):
                yield done.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _episode(self, task: EpisodeTask) -> Trajectory:
        episode, parts = Episode(task.task, task.sample, task.seed, task.task_id), list[Part]()
        environment = self._make()
        try:
            self._play_one(environment, episode, parts)
        except ContextOverflow:
            episode.outcome = "context_overflow"
        except Exception as error:  # Whatever an episode fails by, the others go on.
            episode.outcome, episode.error = "env_error", f"{type(error).__name__}: {error}"
        finally:
            environment.close()
        trajectory = Trajectory.of_episode(episode)
        outcome = ENDPOINT_FAILED if episode.error.startswith(f"{EngineError.__name__}:") else episode.outcome
        return replace(trajectory, parts=parts, outcome=outcome)

    def _play_one(self, environment: BashAgent, episode: Episode, parts: list[Part]) -> None:
        observation = environment.reset(episode.seed)
        messages = [Message(role="user", content=observation)] if isinstance(observation, str) else observation
        parts += [Part("environment", message["content"]) for message in messages]
        for turn in range(self._max_turns):
            seed = sub_seed(self._seed, "turn", -1, episode.task, episode.sample, turn) % 2**31
            reply = self._endpoint.answer(messages, self._params, seed)
            parts.append(Part("student", reply.text, reply.tokens, 1, reply.cut))
            step = environment.step(reply.text)
            episode.reward += step.reward
            episode.counts.update(step.counts)
            if step.done:
                episode.last_words = str(step.observation)
                return
            parts.append(Part("environment", str(step.observation)))
            messages = [
                *messages,
                Message(role="assistant", content=reply.text),
                Message(role="user", content=str(step.observation)),
            ]
        episode.outcome = "turn_limit"
