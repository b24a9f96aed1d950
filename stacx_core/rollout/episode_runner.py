"""Plays episodes side by side: all actors of a turn at once, then all environments."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import parse_prompt
from stacx_core.data.turns import first_ids, next_ids
from stacx_core.errors import ConfigError, DataError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from stacx_core.rollout.environment import (
    ClosableEnvironments,
    Environment,
    LimitedEnvironments,
    MakeEnvironment,
    Observation,
    Step,
)
from stacx_core.rollout.environments.loading import run_environment
from stacx_core.rollout.episodes import Episode, EpisodeTask, Executor, Outcome, Turn
from stacx_core.rollout.playing import RunsEpisodes, Who
from stacx_core.rollout.sampled import sequence_limit
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.protocol import Actor, TeacherTurn
from stacx_core.rollout.timed_calls import OverTime, timed_calls
from stacx_core.seeds import sub_seed

T = TypeVar("T")

logger = logging.getLogger(__name__)


def episode_runner(
    args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None, first: EpisodeTask | None = None
) -> RunsEpisodes:
    """The runner of ``--environment``, or of ``--harness``, once a task was begun to see whether that works.

    Args:
        args: The run's.
        tokenizer: Of the student.
        context_length: Of the student, when it has one.
        first: The task to begin; the first training task by default.

    Raises:
        ConfigError: There is no such environment or harness, it has fewer tasks than are asked for, or the first task
            fails or leaves no room for an action.
        DataError: The chat template refuses the first observation.
    """
    if args.harness is not None:
        from stacx_core.swe.harness.runner import harness_runner

        return harness_runner(args, tokenizer, context_length, first)
    make = run_environment(args)
    runner = EpisodeRunner(args, tokenizer, context_length, make)
    seed = (first or training_task(args, 0, 0)).seed
    (begun,) = timed_calls([partial(_begun, make, seed)], 1, runner.patience)
    if isinstance(begun, BaseException):
        raise ConfigError(f"--environment {args.environment}: its first task fails: {_told(begun)}") from begun
    environment, observation = begun
    timed_calls([environment.close], 1, runner.patience)
    length = len(first_ids(observation, tokenizer, args.apply_chat_template))
    if runner.limit is not None and length + args.rollout_max_response_len > runner.limit:
        raise ConfigError(
            f"--environment {args.environment}: the first observation has {length} tokens, which leaves no room for "
            f"--rollout-max-response-len {args.rollout_max_response_len} within {runner.limit}"
        )
    return runner


@dataclass
class _Seat:
    """One episode while it is played."""

    task: EpisodeTask
    episode: Episode
    place: int
    environment: Environment | None = None
    observation: Observation = ""
    context: list[int] = field(default_factory=list)
    going: bool = True

    def end(self, outcome: Outcome, error: str = "") -> None:
        self.going = False
        self.episode.outcome = outcome
        self.episode.error = error

    def fail(self, error: BaseException) -> None:
        """End because of the environment, which is not touched again when it hangs."""
        if isinstance(error, OverTime):
            self.environment = None
            self.end("env_timeout", str(error))
        else:
            self.episode.counts[type(error).__name__] += 1
            self.end("env_error", _told(error))

    @property
    def text(self) -> str:
        """What the actor sees."""
        return self.observation if isinstance(self.observation, str) else str(self.observation[-1]["content"])


class EpisodeRunner(RunsEpisodes):
    """Plays episodes to their end.

    All episodes that go on take their turn together: one call of the engine for the student's actions, one of the
    teacher for its own, then the environments, ``--env-workers`` of them at a time. Where only so many environments can
    be open at once, further episodes begin as others end. An environment that raises, or takes longer than
    ``--episode-timeout``, ends its own episode and no other. The episodes depend on the seeds alone, not on the number
    of workers or on what is played beside them.

    Args:
        args: The run's; see the knobs of the section ``environment``.
        tokenizer: Of the student.
        context_length: Of the student, when it has one.
        make_environment: From :func:`stacx_core.rollout.environments.loading.run_environment`.

    Raises:
        ConfigError: Not even one environment may be open.
    """

    def __init__(
        self,
        args: Args,
        tokenizer: PreTrainedTokenizerBase,
        context_length: int | None,
        make_environment: MakeEnvironment,
    ) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.limit = sequence_limit(args, context_length)
        self.make_environment = make_environment
        limited = make_environment if isinstance(make_environment, LimitedEnvironments) else None
        self.patience = max(args.episode_timeout, limited.longest_call if limited else 0.0)
        self.at_once = limited.at_once if limited else None
        if self.at_once is not None and self.at_once < 1:
            raise ConfigError(f"--environment {args.environment}: at_once is {self.at_once}; it must be at least 1")

    def play(
        self,
        tasks: Sequence[EpisodeTask],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> Iterator[tuple[int, Episode]]:
        """See :class:`RunsEpisodes`."""
        waiting = deque(
            _Seat(t, Episode(t.task, t.sample, t.seed, t.task_id, str(rollout)), place) for place, t in enumerate(tasks)
        )
        seats: list[_Seat] = []
        try:
            while waiting or seats:
                room = len(waiting) if self.at_once is None else self.at_once - len(seats)
                begun = [waiting.popleft() for _ in range(min(room, len(waiting)))]
                seats += begun
                self._reset(begun)
                self._look(_going(seats), params.max_new_tokens)
                if live := _going(seats):
                    self._act(live, engine, teacher, who, params, rollout)
                    self._step(_going(live))
                over = [seat for seat in seats if not seat.going]
                seats = _going(seats)
                self._close(over)
                yield from ((seat.place, seat.episode) for seat in over)
        finally:
            self._close(seats)

    def stop(self) -> None:
        """See :class:`RunsEpisodes`: environments that can be closed together are."""
        if isinstance(self.make_environment, ClosableEnvironments):
            self.make_environment.close()

    def _call(self, calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
        return timed_calls(calls, self.args.env_workers, self.patience)

    def _reset(self, seats: Sequence[_Seat]) -> None:
        answers = self._call([partial(_begun, self.make_environment, seat.task.seed) for seat in seats])
        for seat, answer in zip(seats, answers, strict=True):
            if isinstance(answer, BaseException):
                seat.fail(answer)
            else:
                seat.environment, seat.observation = answer

    def _look(self, seats: Sequence[_Seat], room: int) -> None:
        """The ids each actor sees; an episode without room for another action ends."""
        for seat in seats:
            try:
                seat.context = self._context(seat)
            except (DataError, TypeError, ValueError) as error:  # such as a half surrogate pair, which has no bytes
                seat.fail(error)
                continue
            if self.limit is not None and len(seat.context) + room > self.limit:
                seat.end("context_overflow")

    def _context(self, seat: _Seat) -> list[int]:
        mode = self.args.apply_chat_template
        if not isinstance(seat.observation, str) or not seat.episode.turns:
            return first_ids(seat.observation, self.tokenizer, mode)
        last = seat.episode.turns[-1]
        return [*last.context, *last.ids, *next_ids(seat.observation, last.ids, self.tokenizer, mode)]

    def _act(
        self,
        seats: Sequence[_Seat],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> None:
        acting: dict[Executor, list[tuple[_Seat, int]]] = {"student": [], "teacher": []}
        for seat in seats:
            turn = len(seat.episode.turns)
            seed = sub_seed(self.args.seed, "turn", rollout, seat.task.task, seat.task.sample, turn)
            acting[who(seat.task, turn)].append((seat, seed))
        if acting["student"]:
            self._generate(acting["student"], engine, params)
        if acting["teacher"]:
            self._ask(acting["teacher"], teacher, params)

    def _generate(
        self, seats: Sequence[tuple[_Seat, int]], engine: RolloutEngine | None, params: SamplingParams
    ) -> None:
        """The student's actions; episodes with one context are one request, so that it is read once."""
        if engine is None:
            raise ValueError("the student is to act, but there is no engine")
        together: dict[tuple[int, ...], list[tuple[_Seat, int]]] = {}
        for seat, seed in seats:
            together.setdefault(tuple(seat.context), []).append((seat, seed))
        requests = [GenerationRequest(ids, [seed for _, seed in group]) for ids, group in together.items()]
        for group, answers in zip(together.values(), engine.generate(requests, params), strict=True):
            for (seat, _), answer in zip(group, answers, strict=True):
                text = str(self.tokenizer.decode(answer.ids, skip_special_tokens=True))
                cut = answer.finish == "length"
                turn = Turn(
                    seat.context, seat.text, "student", answer.ids, answer.log_probs, text, cut, answer.weight_versions
                )
                seat.episode.turns.append(turn)

    def _ask(self, seats: Sequence[tuple[_Seat, int]], teacher: Actor | None, params: SamplingParams) -> None:
        """The teacher's actions; one that is missing, or too long for the context, ends its episode."""
        if teacher is None:
            raise ValueError("a teacher is to act, but there is none")
        turns = [TeacherTurn(seat.context, seat.text, seed) for seat, seed in seats]
        for (seat, _), action in zip(seats, teacher.act(turns, params), strict=True):
            if action is None:
                seat.end("teacher_failed", "the teacher did not act")
            elif self.limit is not None and len(seat.context) + len(action.ids) > self.limit:
                seat.end("context_overflow")
            else:
                ids = list(action.ids)
                seat.episode.turns.append(Turn(seat.context, seat.text, "teacher", ids, [0.0] * len(ids), action.text))

    def _step(self, seats: Sequence[_Seat]) -> None:
        answers = self._call([partial(_stepped, seat.environment, seat.episode.turns[-1].text) for seat in seats])
        for seat, answer in zip(seats, answers, strict=True):
            if isinstance(answer, BaseException):
                seat.fail(answer)
                continue
            seat.observation = answer.observation
            seat.episode.reward += answer.reward
            seat.episode.counts.update(answer.counts)
            if answer.done:
                seat.episode.last_words = seat.text
                seat.end("done")
            elif len(seat.episode.turns) == self.args.max_turns:
                seat.end("turn_limit")

    def _close(self, seats: Sequence[_Seat]) -> None:
        """Close what can be closed; the episodes are over, so a failure here is only reported."""
        names = [seat.task.task_id for seat in seats if seat.environment is not None]
        answers = self._call([seat.environment.close for seat in seats if seat.environment is not None])
        for name, answer in zip(names, answers, strict=True):
            if answer is not None:
                logger.warning("task %s: closing the environment: %r", name, answer)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, OverTime) else f"{type(error).__name__}: {error}"


def _going(seats: Sequence[_Seat]) -> list[_Seat]:
    return [seat for seat in seats if seat.going]


def _begun(make: MakeEnvironment, seed: int) -> tuple[Environment, Observation]:
    """A new environment and its first observation."""
    environment = make()
    return environment, _shown(environment.reset(seed))


def _stepped(environment: Environment | None, action: str) -> Step:
    """The step, with its parts checked: a wrong one is the environment's failure."""
    assert environment is not None
    step = environment.step(action)
    if not isinstance(step, Step):
        raise TypeError(f"step returned {type(step).__name__}; return a stacx_core.Step")
    reward = float(step.reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}; it must be finite")
    # What an environment says at the end is for people, and may be nothing.
    said = str(step.observation) if step.done else _shown(step.observation)
    return Step(said, reward, bool(step.done), step.counts)


def _shown(observation: Observation) -> Observation:
    return observation if isinstance(observation, str) else parse_prompt(observation, "the observation")
