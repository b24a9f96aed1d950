"""Who plays the episodes of an evaluation: a checkpoint in this process or a model elsewhere, perhaps by a harness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
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
from stacx_core.swe.evaluation.forwarding import Forwarder
from stacx_core.swe.evaluation.trajectory import ENDPOINT_FAILED, Part, Trajectory
from stacx_core.swe.gateway.gateway import SessionServer
from stacx_core.swe.gateway.settings import GatewaySettings
from stacx_core.swe.harness.commands import load_harness
from stacx_core.swe.harness.episodes import MODEL, HarnessEpisodes
from stacx_core.swe.harness.runner import HarnessRunner
from stacx_core.swe.side_by_side import side_by_side


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
        # A turn has the user's message alone, but for those of a harness.
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


class HarnessPlayer:
    """A harness with a model behind an endpoint, to which the harness's requests are handed on.

    Args:
        args: The knobs of ``stacx eval``.
        endpoint: The model.
        make: The tasks.
        params: Of the sampling.
    """

    def __init__(self, args: Args, endpoint: Endpoint, make: HarborTasks, params: SamplingParams) -> None:
        settings = GatewaySettings(MODEL, params, seed=args.seed, max_turns=args.max_turns)
        self._forwarder = Forwarder(endpoint, settings)
        self._episodes = HarnessEpisodes(load_harness(args.harness), make, args.harness_timeout)

    def play(self, tasks: Sequence[EpisodeTask]) -> Iterator[Trajectory]:
        """See :class:`Player`."""
        with SessionServer(self._forwarder) as server:
            for _, episode in self._episodes.play(tasks, server, rollout=-1):
                away = episode.outcome == "env_error" and episode.error.startswith(f"{EngineError.__name__}:")
                trajectory = Trajectory.of_episode(episode)
                yield replace(trajectory, outcome=ENDPOINT_FAILED) if away else trajectory


class EndpointPlayer:
    """A model behind an endpoint; every episode that is being played has a thread.

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
        """See :class:`Player`; what breaks this off ends the sandboxes, and waits for no answer of the endpoint."""
        calls = [partial(self._episode, task) for task in tasks]
        try:
            for done in as_completed(side_by_side(calls, self._make.at_once)):
                yield done.result()
        finally:
            self._make.pool.close()

    def _episode(self, task: EpisodeTask) -> Trajectory:
        episode, parts = Episode(task.task, task.sample, task.seed, task.task_id), list[Part]()
        environment, away = self._make(), False
        try:
            self._play_one(environment, episode, parts)
        except ContextOverflow:
            episode.outcome = "context_overflow"
        except Exception as error:  # Whatever an episode fails by, the others go on.
            episode.outcome, episode.error = "env_error", f"{type(error).__name__}: {error}"
            away = isinstance(error, EngineError)
        finally:
            environment.close()
        trajectory = replace(Trajectory.of_episode(episode), parts=parts)
        return replace(trajectory, outcome=ENDPOINT_FAILED) if away else trajectory

    def _play_one(self, environment: BashAgent, episode: Episode, parts: list[Part]) -> None:
        observation = environment.reset(episode.seed)
        messages = [Message(role="user", content=observation)] if isinstance(observation, str) else observation
        parts += [Part("environment", message["content"]) for message in messages]
        for turn in range(self._max_turns):
            seed = sub_seed(self._seed, "turn", -1, episode.task, episode.sample, turn) % 2**31
            said = asyncio.run(self._endpoint.answer(messages, self._params, seed))
            parts.append(Part("student", said.text, said.tokens, 1, said.cut))
            step = environment.step(said.text)
            episode.reward += step.reward
            episode.counts.update(step.counts)
            if step.done:
                episode.last_words = str(step.observation)
                return
            parts.append(Part("environment", str(step.observation)))
            messages = [
                *messages,
                Message(role="assistant", content=said.text),
                Message(role="user", content=str(step.observation)),
            ]
        episode.outcome = "turn_limit"
