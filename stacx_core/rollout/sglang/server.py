"""One SGLang server, spoken to over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from stacx_core.errors import ConfigError, EngineError

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 3.0
"""How long an idle connection is kept: less than a server keeps it, so that no request meets its end."""

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
SAID = 500
"""Characters of a server's own words in a message."""


class ServerUnavailable(EngineError):
    """No good answer this time; the same request may succeed later or elsewhere."""


class ServerSilent(ServerUnavailable):
    """No answer at all: nobody listens, the connection broke, or the time was over."""


class WrongAnswer(ServerUnavailable):
    """An answer of which nothing can be made, from a server that is well enough to give one."""


class ServerRefused(EngineError):
    """The request itself is wrong; asking again would not help."""


class SGLangServer:
    """Asks one server. All servers share the connections of one client per event loop.

    Args:
        url: ``http://HOST:PORT``.
        key: Its API key, if it has one.

    Raises:
        ConfigError: The URL has no scheme or no host.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.strip().rstrip("/")
        self.key = key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            parts = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"{url!r} is no URL of an SGLang server ({error}); write http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ConfigError(f"{url!r} is no URL of an SGLang server; write http://HOST:PORT")

    def __repr__(self) -> str:
        return f"SGLangServer({self.url!r})"

    async def post(self, path: str, body: Any, timeout: float) -> Any:
        """What a POST answers with: JSON, the text where it is of another kind, or ``None`` when it is empty.

        Args:
            path: Starts with a slash.
            body: Sent as JSON.
            timeout: Seconds for the whole answer.

        Raises:
            ServerSilent: Refused, reset or late connections.
            ServerUnavailable: Statuses worth another try, or broken JSON.
            ServerRefused: Any other status than 200.
        """
        return await self._call("POST", path, json.dumps(body).encode(), timeout)

    async def get(self, path: str, timeout: float) -> Any:
        """Like :meth:`post`, with a GET."""
        return await self._call("GET", path, None, timeout)

    async def _call(self, method: str, path: str, content: bytes | None, timeout: float) -> Any:
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout):
                answer = await _client().request(method, self.url + path, content=content, headers=headers)
        except TimeoutError as error:
            raise ServerSilent(f"{self.url}{path}: no answer within {timeout:g} seconds") from error
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise ServerSilent(f"{self.url}{path}: {what}") from error
        if answer.status_code != 200:
            kind = ServerUnavailable if answer.status_code in RETRYABLE else ServerRefused
            raise kind(f"{self.url}{path} answered {answer.status_code}: {_words(answer)}")
        return self._decoded(path, answer)

    def _decoded(self, path: str, answer: httpx.Response) -> Any:
        if not answer.content:
            return None
        if "json" not in answer.headers.get("Content-Type", ""):
            return answer.text
        try:
            return json.loads(answer.content)
        except ValueError as error:
            raise ServerUnavailable(f"{self.url}{path} answered with broken JSON: {_words(answer)}") from error


def _words(answer: httpx.Response) -> str:
    """What a server said, without the JSON around it."""
    text = answer.text.strip()
    try:
        said = json.loads(text)
        error = said.get("error", said.get("detail", said.get("message", said)))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return text[:SAID] or "nothing more"


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


def _client() -> httpx.AsyncClient:
    """The client of the running loop. Servers are reached directly, whatever proxies the environment names."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS)
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        _clients[loop] = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
    return _clients[loop]
