"""The HTTP side of the gateway."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from stacx_core.swe.gateway.answering import Answerer
from stacx_core.swe.gateway.errors import ApiError, bad_request, unknown_model, unknown_session, wrong_key
from stacx_core.swe.gateway.rendering import Renderer
from stacx_core.swe.gateway.replies import Reply, model, models, reply_to
from stacx_core.swe.gateway.requests import ChatRequest, read_request
from stacx_core.swe.gateway.sessions import Session

SESSION_HEADER = "X-Stacx-Session"
"""Names the session of a request to a URL that names none."""
LARGEST_BODY = 64 * 2**20
"""Bytes."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class Endpoint:
    """Answers requests, and records what it answered.

    Args:
        answerer: Has the ids generated.
        renderer: Makes ids of messages.
        sessions: By name; those that are over are not among them.
        key: Every request must bring it.
    """

    def __init__(self, answerer: Answerer, renderer: Renderer, sessions: Mapping[str, Session], key: str) -> None:
        self.answerer = answerer
        self.settings = answerer.settings
        self.renderer = renderer
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
            asked_for = read_request(_parsed(await request.read()), self.settings.model)
            asked = session.begin(asked_for.messages, asked_for.tools, self.renderer)
        except ApiError:
            session.counts["refused"] += 1
            raise
        recorded = False
        try:
            turn = await self.answerer.answer(session, asked, asked_for)
            reply = reply_to(asked_for, turn, self.settings.model)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has gone")
            session.record(asked, turn, reply.message(), reply.parsed.malformed)
            recorded = True
            return _streamed(reply, asked_for) if asked_for.stream else web.json_response(reply.whole())
        except (asyncio.CancelledError, ConnectionResetError):
            session.counts["abandoned"] += 1
            raise
        finally:
            if not recorded:
                session.abandon(asked)

    def _session(self, request: web.Request) -> Session:
        name = request.match_info.get("session") or request.headers.get(SESSION_HEADER)
        if name is None:
            told = f"the request names no session: use the base URL of one, or the header {SESSION_HEADER}"
            raise bad_request(told, code="session_missing")
        if name not in self.sessions:
            raise unknown_session(name)
        return self.sessions[name]


def _streamed(reply: Reply, asked_for: ChatRequest) -> web.Response:
    """The answer in the events that a client expects of a stream; engines give answers whole, so they come at once."""
    events = [f"data: {json.dumps(piece)}\n\n" for piece in reply.pieces(usage=asked_for.include_usage)]
    return web.Response(text="".join([*events, "data: [DONE]\n\n"]), content_type="text/event-stream")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
