"""The HTTP side of the gateway."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from aiohttp import web

from stacx_core.swe.gateway.errors import (
    ApiError,
    bad_request,
    turn_limit,
    unknown_model,
    unknown_session,
    wrong_key,
)
from stacx_core.swe.gateway.replies import Reply, model, models, pieces
from stacx_core.swe.gateway.sessions import Asked, Session
from stacx_core.swe.gateway.settings import GatewaySettings

SESSION_HEADER = "X-Stacx-Session"
"""Names the session of a request to a URL that names none."""
LARGEST_BODY = 64 * 2**20
"""Bytes."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class Question(Protocol):
    """A request that can be answered."""

    @property
    def asked(self) -> Asked:
        """Its place in the session."""

    @property
    def stream(self) -> bool:
        """Whether the answer is sent in pieces."""

    @property
    def include_usage(self) -> bool:
        """Whether the last piece counts the tokens."""

    async def answer(self) -> Reply:
        """What the model says.

        Raises:
            ApiError: The model cannot answer, which the session knows as its ``trouble``, or refuses the request.
        """


class Model(Protocol):
    """Who answers: the policy and its teacher, or a model elsewhere.

    Attributes:
        settings: What answers depend on.
        failed: Has the first error that ends all sessions, once there is one.
    """

    settings: GatewaySettings
    failed: Future[None]

    def read(self, session: Session, body: Any) -> Question:
        """Check the body of a request, from JSON.

        Raises:
            ApiError: It is malformed, or asks for what is not offered.
        """

    def close(self) -> None:
        """Let go of whatever answers."""


class Endpoint:
    """Answers requests, and records what it answered.

    Args:
        answers: Who answers.
        sessions: By name; those that are over are not among them.
        key: Every request must bring it.
    """

    def __init__(self, answers: Model, sessions: Mapping[str, Session], key: str) -> None:
        self.answers = answers
        self.settings = answers.settings
        self.sessions = sessions
        self.key = key

    def application(self) -> web.Application:
        """The routes, each with and without a session in front."""
        application = web.Application(middlewares=[self._guard], client_max_size=LARGEST_BODY)
        for prefix in ("", "/session/{session}"):
            application.router.add_post(f"{prefix}/v1/chat/completions", self._complete)
            application.router.add_get(f"{prefix}/v1/models", self._models)
            application.router.add_get(f"{prefix}/v1/models/{{model:.+}}", self._model)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the key, and make every error one of the protocol."""
        try:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {self.key}".encode()):
                raise wrong_key()
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body(), status=error.status)
        except web.HTTPException as error:
            told = ApiError(error.status, f"{request.method} {request.path}: {error.reason}")
            return web.json_response(told.body(), status=error.status)
        except Exception as error:
            if request.transport is None or request.transport.is_closing():
                raise
            logger.exception("the gateway failed on a request")
            broken = ApiError(500, f"the gateway failed: {type(error).__name__}: {error}")
            return web.json_response(broken.body(), status=500)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(models(self.settings.model, self.settings.limit))

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["model"]
        if name != self.settings.model:
            raise unknown_model(name, self.settings.model)
        return web.json_response(model(name, self.settings.limit))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        try:
            question = self.answers.read(session, _parsed(await request.read()))
        except ApiError:
            session.counts["refused"] += 1
            raise
        recorded = False
        try:
            self._check_turns(session, question.asked)
            reply = await question.answer()
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has gone")
            session.record(question.asked, reply.turn, reply.message, reply.malformed)
            recorded = True
            return _streamed(reply, question) if question.stream else web.json_response(reply.whole)
        except (asyncio.CancelledError, ConnectionResetError):
            session.counts["abandoned"] += 1
            raise
        finally:
            if not recorded:
                session.abandon(question.asked)

    def _check_turns(self, session: Session, asked: Asked) -> None:
        most = self.settings.max_turns
        if most is not None and asked.number >= most:
            session.trouble = ("turn_limit", "")
            raise turn_limit(most)

    def _session(self, request: web.Request) -> Session:
        name = request.match_info.get("session") or request.headers.get(SESSION_HEADER)
        if name is None:
            told = f"the request names no session: use the base URL of one, or the header {SESSION_HEADER}"
            raise bad_request(told, code="session_missing")
        if name not in self.sessions:
            raise unknown_session(name)
        return self.sessions[name]


def _streamed(reply: Reply, question: Question) -> web.Response:
    """The answer in the events that a client expects of a stream; it is there as a whole, so they come at once."""
    events = [f"data: {json.dumps(piece)}\n\n" for piece in pieces(reply.whole, usage=question.include_usage)]
    return web.Response(text="".join([*events, "data: [DONE]\n\n"]), content_type="text/event-stream")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
