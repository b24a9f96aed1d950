"""Who answers a request: the student's engine or a teacher, and what becomes of the ids."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from stacx_core.errors import EngineError, TeacherError
from stacx_core.rollout.engine import (
    Generation,
    GenerationRequest,
    InterruptibleEngine,
    RolloutEngine,
    SamplingParams,
)
from stacx_core.rollout.episodes import Turn
from stacx_core.rollout.playing import Who
from stacx_core.rollout.teachers.protocol import Actor, TeacherAction, TeacherTurn
from stacx_core.seeds import sub_seed
from stacx_core.swe.gateway.batching import Batcher
from stacx_core.swe.gateway.errors import ApiError, too_long, turn_limit
from stacx_core.swe.gateway.requests import ChatRequest
from stacx_core.swe.gateway.sessions import Asked, Session


@dataclass(frozen=True)
class GatewaySettings:
    """What answers depend on, beside the requests.

    Args:
        model: The name under which the policy is served.
        params: How to sample; its ``max_new_tokens`` bounds what a request may ask for.
        limit: Most tokens of context and answer together, if there is a limit.
        seed: Of the run.
        sampling: Whose temperature, top-p and seed count: with ``run`` those of a request are taken and not used, so
            that all samples are of the policy that is trained; with ``request`` they are used where it names them.
        max_turns: Most answers of a session, if there is a limit.
    """

    model: str
    params: SamplingParams
    limit: int | None = None
    seed: int = 0
    sampling: Literal["run", "request"] = "run"
    max_turns: int | None = None


class Answerer:
    """Has requests answered by the executor that ``who`` names.

    Args:
        settings: See there.
        tokenizer: Of the policy.
        engine: Acts for the student; None where ``who`` never names it.
        teacher: Acts for the teacher; None where ``who`` never names it.
        who: Names the executor of each request of a session, by its number.

    Attributes:
        failed: Has the first error that engine or teacher raised, once there is one.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        tokenizer: PreTrainedTokenizerBase,
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.engine = engine
        self.teacher = teacher
        self.who = who
        self.failed: Future[None] = Future()
        self._student = Batcher(self._generate, overlapping=isinstance(engine, InterruptibleEngine))
        self._expert = Batcher(self._act)

    async def answer(self, session: Session, asked: Asked, request: ChatRequest) -> Turn:
        """Generate the ids that follow the context.

        Raises:
            ApiError: 403 when the session has had its answers, 400 without room in the context, 503 when the engine or
                the teacher cannot be had, 500 when it fails otherwise.
        """
        if self.settings.max_turns is not None and asked.number >= self.settings.max_turns:
            session.trouble = ("turn_limit", "")
            raise turn_limit(self.settings.max_turns)
        params = self._params(asked, request, session)
        seed = self._seed(session, asked, request)
        try:
            future = self._handed_on(asked, params, session, seed)
            answer: Generation | TeacherAction | None = await asyncio.wrap_future(future)
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise _failed(session, error) from error
        if answer is None:
            raise _failed(session, TeacherError("the teacher did not act"))
        if self.settings.limit is not None and len(asked.context) + len(answer.ids) > self.settings.limit:
            raise _overflow(session, len(asked.context) + len(answer.ids), self.settings.limit)
        return self._turn(asked, answer, request.stop)

    def _handed_on(self, asked: Asked, params: SamplingParams, session: Session, seed: int) -> Future[Any]:
        if self.who(session.task, asked.number) == "student":
            return self._student.ask(GenerationRequest(asked.context, [seed]), params)
        return self._expert.ask(TeacherTurn(asked.context, asked.observation, seed), params)

    def close(self) -> None:
        """End the threads, once what they were asked is answered."""
        self._student.close()
        self._expert.close()

    def _generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        if self.engine is None:
            raise ValueError("the student is to act, but there is no engine")
        return [answer for (answer,) in self.engine.generate(requests, params)]

    def _act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> Sequence[TeacherAction | None]:
        if self.teacher is None:
            raise ValueError("a teacher is to act, but there is none")
        return self.teacher.act(turns, params)

    def _params(self, asked: Asked, request: ChatRequest, session: Session) -> SamplingParams:
        own, limit = self.settings.params, self.settings.limit
        most = min(own.max_new_tokens, request.max_tokens or own.max_new_tokens)
        if limit is not None:
            if len(asked.context) >= limit:
                raise _overflow(session, len(asked.context), limit)
            most = min(most, limit - len(asked.context))
        if self.settings.sampling == "run":
            return SamplingParams(most, own.temperature, own.top_p, own.top_k)
        temperature = own.temperature if request.temperature is None else request.temperature
        return SamplingParams(most, temperature, request.top_p or own.top_p, own.top_k)

    def _seed(self, session: Session, asked: Asked, request: ChatRequest) -> int:
        if self.settings.sampling == "request" and request.seed is not None:
            return request.seed
        task = session.task
        return sub_seed(self.settings.seed, "turn", session.rollout, task.task, task.sample, asked.number)

    def _turn(self, asked: Asked, answer: Generation | TeacherAction, stop: Sequence[str]) -> Turn:
        """What was done, up to the token that completes the first of the stop texts."""
        context, seen, ids = asked.context, asked.observation, answer.ids
        text = answer.text if isinstance(answer, TeacherAction) else self._text(ids)
        stopped = _holds(text, stop)
        if stopped:
            ids = ids[: bisect_left(range(len(ids) + 1), True, key=lambda n: _holds(self._text(ids[:n]), stop))]
            text = text[: min(place for place in map(text.find, stop) if place >= 0)]
        if isinstance(answer, TeacherAction):
            return Turn(context, seen, "teacher", ids, [0.0] * len(ids), text)
        log_probs, versions = answer.log_probs[: len(ids)], answer.weight_versions[: len(ids)]
        return Turn(context, seen, "student", ids, log_probs, text, answer.finish == "length" and not stopped, versions)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _holds(text: str, stop: Sequence[str]) -> bool:
    return any(stopper in text for stopper in stop)


def _overflow(session: Session, length: int, limit: int) -> ApiError:
    session.counts["context_overflows"] += 1
    session.trouble = ("context_overflow", "")
    return too_long(length, limit)


def _failed(session: Session, error: Exception) -> ApiError:
    """The answer to a request that could not be answered, which the harness may send again."""
    told = f"{type(error).__name__}: {error}"
    session.trouble = ("teacher_failed" if isinstance(error, TeacherError) else "env_error", told)
    away = isinstance(error, EngineError | TeacherError)
    return ApiError(503 if away else 500, f"the model cannot answer: {told}", "engine_unavailable" if away else None)
