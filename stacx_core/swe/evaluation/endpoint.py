"""A model behind the protocol of OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from stacx_core.data.sample import Message
from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.engine import SamplingParams

_TRY_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_ABOUT_THE_REQUEST = (400, 413, 422)


class ContextOverflow(Exception):
    """The conversation does not fit into the model's context."""


class RefusedRequest(EngineError):
    """The endpoint does not take a request as it is.

    Attributes:
        status: Of the HTTP answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Said:
    """What the model said.

    Args:
        text: Its words, and its tool calls as policies write them.
        tokens: How many tokens that is, where the endpoint says so.
        cut: Whether it was cut at the length limit.
    """

    text: str
    tokens: int | None
    cut: bool

    @classmethod
    def of(cls, completion: Mapping[str, Any]) -> Said:
        """From the object ``chat.completion``."""
        choice = completion["choices"][0]
        message = choice["message"]
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        text = "\n".join(filter(None, [message.get("content"), *calls]))
        tokens = (completion.get("usage") or {}).get("completion_tokens")
        return cls(text, tokens, choice.get("finish_reason") == "length")


class Endpoint:
    """One model of an endpoint; used in several threads and event loops.

    Args:
        url: Such as ``http://localhost:8000/v1``; without a path, ``/v1`` is added.
        model: Its name there; None for the first that the endpoint lists.
        key: Sent as the bearer; None for none.
        timeout: Seconds for an answer.
        waits: Seconds before each further try, when it is busy or does not answer.

    Raises:
        ConfigError: The URL is none.
        EngineError: It does not answer, or lists no model.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str | None = None,
        timeout: float = 600.0,
        waits: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--endpoint {url!r} is no URL such as http://localhost:8000/v1")
        self._url = url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout, self._waits = aiohttp.ClientTimeout(timeout), waits
        self.model = model or asyncio.run(self._first_model())

    async def answer(self, messages: Sequence[Message], params: SamplingParams, seed: int) -> Said:
        """What the model says next.

        Args:
            messages: The conversation.
            params: ``top_k`` is not part of the protocol and not sent.
            seed: Of the sampling, in ``[0, 2**31)``.

        Raises:
            ContextOverflow, EngineError: As of :meth:`complete`.
        """
        body = {"messages": list(messages), "max_tokens": params.max_new_tokens, "seed": seed}
        return Said.of(await self.complete({**body, "temperature": params.temperature, "top_p": params.top_p}))

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object ``chat.completion`` that answers a request.

        Args:
            body: Of the request, but for the model's name.

        Raises:
            ContextOverflow: There is no room for an answer.
            RefusedRequest: Something else in the body is not taken.
            EngineError: There is no answer, or none that follows the protocol.
        """
        answer = await self._ask("POST", "/chat/completions", {**body, "model": self.model})
        try:
            Said.of(answer)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(f"{self._url} gave no chat completion: {json.dumps(answer)[:200]}") from error
        return dict(answer)

    async def _first_model(self) -> str:
        listed = await self._ask("GET", "/models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self._url} lists no model", "name one with --endpoint-model") from error

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        url = self._url + path
        async with aiohttp.ClientSession(headers=self._headers, timeout=self._timeout, trust_env=True) as client:
            for wait in (*self._waits, None):
                try:
                    async with client.request(method, url, json=body) as answer:
                        said = await answer.read()
                    if answer.ok:
                        return json.loads(said)
                    problem = f"{answer.status} {answer.reason}: {said.decode(errors='replace')[:300]}"
                    if answer.status not in _TRY_AGAIN:
                        raise _refusal(answer.status, problem, url)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    problem = str(error) or type(error).__name__
                if wait is not None:
                    await asyncio.sleep(wait)
        raise EngineError(f"{url} does not answer, after {len(self._waits) + 1} tries: {problem}")


def _call(call: Mapping[str, Any]) -> str:
    name, arguments = json.dumps(call["function"]["name"]), call["function"]["arguments"]
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _refusal(status: int, problem: str, url: str) -> Exception:
    """The error of a request that is not worth another try; servers tell a full context in several words."""
    words = problem.lower()
    about_it = status in _ABOUT_THE_REQUEST
    if about_it and "context" in words and ("length" in words or "exceed" in words or "long" in words):
        return ContextOverflow(problem)
    return RefusedRequest(problem, status) if about_it else EngineError(f"{url} refuses: {problem}")
