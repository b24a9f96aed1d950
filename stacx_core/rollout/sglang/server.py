"""One SGLang server, spoken to over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import aiohttp

from stacx_core.errors import ConfigError, EngineError

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 3.0
"""How long an idle connection is kept: less than a server keeps it, so that no request meets its end."""

BUSY = frozenset({408, 425, 429, 502, 503, 504})
GOOD = range(200, 300)
SAID = 500
"""Characters of a server's own words in a message."""


class ServerUnavailable(EngineError):
    """No good answer this time; the same request may succeed later or elsewhere."""


class ServerSilent(ServerUnavailable):
    """No answer at all: nobody listens, the connection broke, or the time was over."""


class ServerBusy(ServerUnavailable):
    """An answer that there is none now, such as 503, of the server or of something in front of it."""


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
            parts = urlsplit(self.url)
            well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL of an SGLang server ({error}); write http://HOST:PORT") from error
        if not well_formed:
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
            ServerBusy: Statuses that tell to come back later.
            ServerUnavailable: Status 500, or broken JSON.
            ServerRefused: Any other status than one of success.
        """
        return await self._call("POST", path, json.dumps(body).encode(), timeout)

    async def get(self, path: str, timeout: float) -> Any:
        """Like :meth:`post`, with a GET."""
        return await self._call("GET", path, None, timeout)

    async def delete(self, path: str, timeout: float) -> Any:
        """Like :meth:`post`, with a DELETE."""
        return await self._call("DELETE", path, None, timeout)

    async def _call(self, method: str, path: str, content: bytes | None, timeout: float) -> Any:
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout),
                _client().request(
                    method, self.url + path, data=content, headers=headers, allow_redirects=False
                ) as answer,
            ):
                said = await answer.read()
        except aiohttp.ClientConnectorError as error:
            number, words = error.os_error.errno or 0, error.os_error.strerror
            what = os.strerror(number) if number > 0 else words  # Names that do not resolve have numbers below 0.
            raise ServerSilent(f"{self.url}{path}: no connection: {what}") from error
        except aiohttp.ClientError as error:
            what = str(error) or type(error).__name__
            raise ServerSilent(f"{self.url}{path}: {what}") from error
        except TimeoutError as error:
            raise ServerSilent(f"{self.url}{path}: no answer within {timeout:g} seconds") from error
        if answer.status not in GOOD:
            raise _error_kind(answer.status)(f"{self.url}{path} answered {answer.status}: {_words(said)}")
        if not said:
            return None
        if "json" not in answer.content_type:
            return said.decode(errors="replace")
        try:
            return json.loads(said)
        except ValueError as error:
            raise ServerUnavailable(f"{self.url}{path} answered with broken JSON: {_words(said)}") from error


def _error_kind(status: int) -> type[EngineError]:
    if status in BUSY:
        return ServerBusy
    return ServerUnavailable if status == 500 else ServerRefused


def _words(said: bytes) -> str:
    """What a server said, without the JSON around it."""
    text = said.decode(errors="replace").strip()
    try:
        answer = json.loads(text)
        error = answer.get("error", answer.get("detail", answer.get("message", answer)))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return text[:SAID] or "nothing more"


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, asyncio.Task[None]]] = (
    WeakKeyDictionary()
)


def _client() -> aiohttp.ClientSession:
    """The client of the running loop. Servers are reached directly, whatever proxies the environment names."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        _clients[loop] = session, loop.create_task(_hold(session))
    session, _ = _clients[loop]
    return session


async def _hold(session: aiohttp.ClientSession) -> None:
    """Close it when the loop ends, which cancels its tasks."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await session.close()
