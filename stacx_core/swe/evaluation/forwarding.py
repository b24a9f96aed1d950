"""Harnesses that talk to a model elsewhere: their requests are handed on to it, and what it said is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from stacx_core.data.sample import Message
from stacx_core.errors import EngineError
from stacx_core.rollout.episodes import Turn
from stacx_core.seeds import sub_seed
from stacx_core.swe.evaluation.endpoint import ContextOverflow, Endpoint, RefusedRequest, Said
from stacx_core.swe.gateway.errors import ApiError, bad_request, unknown_model
from stacx_core.swe.gateway.replies import Reply
from stacx_core.swe.gateway.requests import read_max_tokens, read_stream
from stacx_core.swe.gateway.sessions import Asked, Session
from stacx_core.swe.gateway.settings import GatewaySettings

_OWN = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed")
"""Fields that are not handed on as they are."""


@dataclass(frozen=True)
class ForwardedQuestion:
    """A request to be handed on; see :class:`stacx_core.swe.gateway.server.Question`."""

    forwarder: Forwarder
    session: Session
    asked: Asked
    stream: bool
    include_usage: bool
    body: Mapping[str, Any]
    """For the endpoint."""

    async def answer(self) -> Reply:
        """See there."""
        session = self.session
        try:
            completion = await self.forwarder.endpoint.complete(self.body)
        except ContextOverflow as error:
            told = bad_request(str(error), "messages", "context_length_exceeded")
            raise session.overflowed(told) from error
        except RefusedRequest as error:
            session.counts["refused"] += 1
            raise ApiError(error.status, str(error)) from error
        except EngineError as error:
            raise session.failed(error) from error
        said = Said.of(completion)
        turn = Turn([], self.asked.observation, "student", [], [], said.text, said.cut, reported_tokens=said.tokens)
        whole = {**completion, "model": self.forwarder.settings.model, "choices": completion["choices"][:1]}
        return Reply(turn, _read(whole["choices"][0]["message"]), whole)


class Forwarder:
    """Hands requests on to an endpoint; a :class:`stacx_core.swe.gateway.server.Model`.

    All fields of a request are handed on but the sampling, which is the run's, and the stream: the endpoint answers as
    a whole. What is recorded is text, since an endpoint tells no token ids.

    Args:
        endpoint: The model.
        settings: What answers depend on; of its limits, ``limit`` is the endpoint's affair.

    Attributes:
        failed: Stays open: an endpoint that fails costs its own session only.
    """

    def __init__(self, endpoint: Endpoint, settings: GatewaySettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.failed: Future[None] = Future()

    def read(self, session: Session, body: Any) -> ForwardedQuestion:
        """See :class:`stacx_core.swe.gateway.server.Model`."""
        if not isinstance(body, dict):
            raise bad_request(f"the body must be a JSON object, not {type(body).__name__}")
        given = {name: value for name, value in body.items() if value is not None}
        if given.get("model") != self.settings.model:
            raise unknown_model(given.get("model"), self.settings.model)
        if given.get("n", 1) != 1:
            raise bad_request("n is not offered here: leave it out, or at 1", "n", "unsupported_parameter")
        messages = given.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise bad_request("messages must be a list of objects", "messages")
        stream, include_usage = read_stream(given)
        most = min(read_max_tokens(given) or self.settings.params.max_new_tokens, self.settings.params.max_new_tokens)
        asked = session.begin([*map(_read, messages)], (), None)
        handed_on = self._handed_on(given, most, session, asked)
        return ForwardedQuestion(self, session, asked, stream, include_usage, handed_on)

    def _handed_on(self, given: dict[str, Any], most: int, session: Session, asked: Asked) -> dict[str, Any]:
        """The body for the endpoint: the harness's, sampled as the run says."""
        params, task = self.settings.params, session.task
        seed = sub_seed(self.settings.seed, "turn", session.rollout, task.task, task.sample, asked.number) % 2**31
        kept = {name: value for name, value in given.items() if name not in _OWN}
        limit = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
        return {**kept, limit: most, "temperature": params.temperature, "top_p": params.top_p, "seed": seed}

    def close(self) -> None:
        """Nothing to let go of."""


def _read(message: Mapping[str, Any]) -> Message:
    """Who said what in a message, whatever else it has."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return {"role": str(message.get("role")), "content": "".join(map(_text, parts))}


def _text(part: Any) -> str:
    if isinstance(part, dict):
        return str(part.get("text") or f"[{part.get('type')}]")
    return "" if part is None else str(part)
