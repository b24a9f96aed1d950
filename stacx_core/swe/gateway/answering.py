"""Who answers a request: the student's engine or a teacher, and what becomes of the ids."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.errors import TeacherError
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
from stacx_core.swe.gateway.errors import too_long
from stacx_core.swe.gateway.rendering import Renderer
from stacx_core.swe.gateway.replies import Reply, reply_to
from stacx_core.swe.gateway.requests import ChatRequest, read_request
from stacx_core.swe.gateway.sessions import Asked, Session
from stacx_core.swe.gateway.settings import GatewaySettings


@dataclass(frozen=True)
class PolicyQuestion:
    """A request to the policy; see :class:`stacx_core.swe.gateway.server.Question`."""

    answerer: Answerer
    session: Session
    request: ChatRequest
    asked: Asked

    @property
    def stream(self) -> bool:
        """See there."""
        return self.request.stream

    @property
    def include_usage(self) -> bool:
        """See there."""
        return self.request.include_usage

    async def answer(self) -> Reply:
        """See there."""
        turn = await self.answerer.answer(self.session, self.asked, self.request)
        return reply_to(self.request, turn, self.answerer.settings.model)


class Answerer:
    """Has requests answered by the executor that ``who`` names; a :class:`stacx_core.swe.gateway.server.Model`.

    Args:
        settings: See there.
        tokenizer: Of the policy, with a chat template.
        engine: Acts for the student; None where ``who`` never names it.
        teacher: Acts for the teacher; None where ``who`` never names it.
        who: Names the executor of each request of a session, by its number.

    Attributes:
        failed: Has the first error that engine or teacher raised, once there is one.

    Raises:
        ConfigError: The tokenizer has no chat template.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        tokenizer: PreTrainedTokenizerBase,
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
    ) -> None:
        self.renderer = Renderer(tokenizer)
        self.settings = settings
        self.tokenizer = tokenizer
        self.engine = engine
        self.teacher = teacher
        self.who = who
        self.failed: Future[None] = Future()
        self._student = Batcher(self._generate, overlapping=isinstance(engine, InterruptibleEngine))
        self._expert = Batcher(self._act)

    def read(self, session: Session, body: Any) -> PolicyQuestion:
        """See :class:`stacx_core.swe.gateway.server.Model`."""
        request = read_request(body, self.settings.model)
        return PolicyQuestion(self, session, request, session.begin(request.messages, request.tools, self.renderer))

    async def answer(self, session: Session, asked: Asked, request: ChatRequest) -> Turn:
        """Generate the ids that follow the context.

        Raises:
            ApiError: 400 without room in the context, 503 when the engine or the teacher cannot be had, 500 when it
                fails otherwise.
        """
        params = self._params(asked, request, session)
        seed = self._seed(session, asked, request)
        try:
            future = self._handed_on(asked, params, session, seed)
            answer: Generation | TeacherAction | None = await asyncio.wrap_future(future)
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise session.failed(error) from error
        if answer is None:
            raise session.failed(TeacherError("the teacher did not act"))
        if self.settings.limit is not None and len(asked.context) + len(answer.ids) > self.settings.limit:
            raise session.overflowed(too_long(len(asked.context) + len(answer.ids), self.settings.limit))
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
                raise session.overflowed(too_long(len(asked.context), limit))
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
