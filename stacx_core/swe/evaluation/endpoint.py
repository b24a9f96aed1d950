"""A model behind the protocol of OpenAI's chat completions."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stacx_core.data.sample import Message
from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.engine import SamplingParams

_TRY_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)


class ContextOverflow(Exception):
    """The conversation does not fit into the model's context."""


@dataclass(frozen=True)
class Reply:
    """What the model said.

    Args:
        text: Its words.
        tokens: How many tokens they are, where the endpoint says so.
        cut: Whether they were cut at the length limit.
    """

    text: str
    tokens: int | None
    cut: bool


class Endpoint:
    """One model of an endpoint; used in several threads.

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
        self._key, self._timeout, self._waits = key, timeout, waits
        self.model = model or self._first_model()

    def answer(self, messages: Sequence[Message], params: SamplingParams, seed: int) -> Reply:
        """What the model says next.

        Args:
            messages: The conversation.
            params: ``top_k`` is not part of the protocol and not sent.
            seed: Of the sampling, in ``[0, 2**31)``.

        Raises:
            ContextOverflow: There is no room for an answer.
            EngineError: There is no answer, or none that follows the protocol.
        """
        body = {"model": self.model, "messages": list(messages), "max_tokens": params.max_new_tokens, "seed": seed}
        body |= {"temperature": params.temperature, "top_p": params.top_p}
        answer = self._ask("/chat/completions", body)
        try:
            choice = answer["choices"][0]
            text, finish = choice["message"].get("content") or "", choice.get("finish_reason")
            tokens = (answer.get("usage") or {}).get("completion_tokens")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(f"{self._url} gave no chat completion: {json.dumps(answer)[:200]}") from error
        return Reply(str(text), tokens, finish == "length")

    def _first_model(self) -> str:
        listed = self._ask("/models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self._url} lists no model", "name one with --endpoint-model") from error

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        for wait in (*self._waits, None):
            try:
                return self._asked_once(path, body)
            except urllib.error.HTTPError as error:
                problem = _told(error)
                if error.code not in _TRY_AGAIN:
                    raise _refusal(error.code, problem, self._url + path) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error) or type(error).__name__
            if wait is not None:
                time.sleep(wait)
        raise EngineError(f"{self._url}{path} does not answer, after {len(self._waits) + 1} tries: {problem}")

    def _asked_once(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=self._timeout) as response:
            return json.load(response)


def _told(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    return f"{error.code} {error.reason}: {text[:300]}"


def _refusal(code: int, problem: str, url: str) -> Exception:
    """The error of a request that is not worth another try; servers tell a full context in several words."""
    words = problem.lower()
    if code in (400, 413, 422) and "context" in words and ("length" in words or "exceed" in words or "long" in words):
        return ContextOverflow(problem)
    return EngineError(f"{url} refuses: {problem}")
