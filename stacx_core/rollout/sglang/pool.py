"""Several servers as one: who is asked next, and what becomes of a server that fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.sglang.loop import LoopThread, shared_loop
from stacx_core.rollout.sglang.server import ServerRefused, ServerUnavailable, SGLangServer, WrongAnswer

T = TypeVar("T")
Send = Callable[[SGLangServer], Awaitable[T]]
OnLost = Callable[[int, EngineError], bool]
"""Told of a server's number and its first failure, in the loop's thread; true when the server will be back."""

HEALTH_SECONDS = 30.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How hard servers are pressed.

    Args:
        concurrency: Most requests under way at one server.
        retries: How often a request, and a server that failed, is tried again.
        retry_wait: Seconds before a server that failed is tried again, doubled each time.
        timeout: Seconds for the answer to one request.
    """

    concurrency: int = 64
    retries: int = 5
    retry_wait: float = 0.5
    timeout: float = 600.0

    @property
    def waits(self) -> tuple[float, ...]:
        """Seconds before each further try."""
        return tuple(self.retry_wait * 2**tried for tried in range(self.retries))


class _State(Enum):
    UP = auto()
    """Gets requests."""
    AWAY = auto()
    """Failed a moment ago, and will be tried again."""
    AWAITED = auto()
    """Failed for good, but somebody is bringing it back."""
    LOST = auto()
    """Failed for good, as far as anybody knows."""


@dataclass(eq=False)
class _Member:
    server: SGLangServer
    state: _State = _State.UP
    failures: int = 0
    """How often it failed since it last answered well."""
    cause: EngineError | None = None
    """The first of these failures."""
    running: set[asyncio.Future[Any]] = field(default_factory=set)
    load: int = 0
    recovery: asyncio.Task[None] | None = None


class ServerPool:
    """Sends each request to the least loaded server, and elsewhere or again when that fails.

    A server that fails gets no requests for a while, then its health is asked, with growing waits; the first good
    answer clears its name. One that fails more than ``limits.retries`` times in a row is taken out, and what it was
    doing is done by others. A wrong answer is a failure of the request, not of the server.

    Args:
        servers: At least one.
        limits: See :class:`Limits`.
        on_lost: Told when a server is taken out by the pool itself; may promise that it will be :meth:`back`.
        loop: Where everything happens; the process's shared loop by default.
    """

    def __init__(
        self,
        servers: Iterable[SGLangServer],
        limits: Limits | None = None,
        on_lost: OnLost | None = None,
        loop: LoopThread | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.on_lost = on_lost
        self._loop = loop or shared_loop()
        self._members = [_Member(server) for server in servers]
        self._waiting: deque[asyncio.Future[_Member]] = deque()
        self._first: EngineError | None = None
        if not self._members:
            raise ConfigError("a pool needs at least one SGLang server")

    @property
    def servers(self) -> list[SGLangServer]:
        """Those that were not taken out."""
        return [member.server for member in self._members if member.state in (_State.UP, _State.AWAY)]

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine that talks to the servers returns or raises."""
        return self._loop.run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Callable[[], object]:
        """Start a coroutine and return what cancels it."""
        return self._loop.submit(coroutine).cancel

    def lost(self, index: int, cause: EngineError) -> None:
        """Give a server nothing until it is back, and what it was doing to others; from any thread."""
        self._loop.call(self._remove, self._members[index], cause, _State.AWAITED)

    def gone(self, index: int, cause: EngineError) -> None:
        """Like :meth:`lost`, but nobody waits for it: when all are gone, requests fail."""
        self._loop.call(self._remove, self._members[index], cause, _State.LOST)

    def back(self, index: int, url: str) -> None:
        """Give a server requests again, as if it had never failed, wherever it is now; from any other thread."""

        async def give() -> None:
            member = self._members[index]
            self._return(member, SGLangServer(url, member.server.key))

        self._loop.run(give())

    async def revive(self) -> None:
        """Give servers another chance that failed for good."""
        self._first = None
        for member in self._members:
            if member.state is _State.LOST:
                self._return(member, member.server)

    async def take_out(self, url: str, cause: EngineError) -> None:
        """Take a server out that failed at something else than a request, unless that was done already."""
        for member in self._members:
            if member.server.url == url and member.state in (_State.UP, _State.AWAY):
                self._failed_for_good(member, cause)

    async def every(self, call: Send[T]) -> list[T]:
        """What a call answers at each server that was not taken out, all at a time; raises the first error."""
        return list(await asyncio.gather(*(call(server) for server in self.servers)))

    async def ask(self, send: Send[T], tries: int | None = None) -> T:
        """The answer of one server.

        Args:
            send: Asks a server; raises ``ServerUnavailable`` when another try, here or elsewhere, may help.
            tries: How often; ``1 + limits.retries`` by default.

        Raises:
            ServerRefused: The request is wrong.
            ServerUnavailable: The first failure, when every try failed.
            EngineError: No server is left, with the cause of the first loss.
        """
        first: ServerUnavailable | None = None
        for _ in range(tries or 1 + self.limits.retries):
            member = await self._reserve()
            streak = member.failures
            try:
                answer = await self._sent(member, send)
            except WrongAnswer as error:
                first = first or error
            except ServerUnavailable as error:
                first = first or error
                self._failed(member, streak, error)
            else:
                member.failures, member.cause = 0, None
                return answer
            finally:
                member.load -= 1
                self._dispatch()
        assert first is not None
        raise first

    async def _sent(self, member: _Member, send: Send[T]) -> T:
        task = asyncio.ensure_future(send(member.server))
        member.running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                task.cancel()
                raise
            cause = member.cause or self._first
            raise ServerUnavailable(f"{member.server.url} was taken out: {cause}") from None
        finally:
            member.running.discard(task)

    async def _reserve(self) -> _Member:
        """A server with room, waiting for one in turn."""
        turn: asyncio.Future[_Member] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().load -= 1
                self._dispatch()
            raise

    def _dispatch(self) -> None:
        """Give those who wait the servers that have room."""
        while self._waiting:
            free = [m for m in self._members if m.state is _State.UP and m.load < self.limits.concurrency]
            if not free:
                break
            turn = self._waiting.popleft()
            if not turn.done():
                member = min(free, key=lambda m: m.load)
                member.load += 1
                turn.set_result(member)
        if all(member.state is _State.LOST for member in self._members):
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_exception(self._none_left())

    def _none_left(self) -> EngineError:
        others = [str(member.cause) for member in self._members if member.cause is not self._first]
        return EngineError(f"no SGLang server is left; the first was lost because {self._first}", *others)

    def _failed(self, member: _Member, streak: int, error: ServerUnavailable) -> None:
        """Note a failure, unless it is of a request sent before one that was noted already."""
        if member.state is not _State.UP or member.failures != streak:
            return
        member.failures += 1
        member.cause = member.cause or error
        if member.failures > self.limits.retries:
            self._failed_for_good(member, member.cause)
            return
        logger.warning("%s", error)
        member.state = _State.AWAY
        member.recovery = asyncio.get_running_loop().create_task(self._recover(member))

    async def _recover(self, member: _Member) -> None:
        while True:
            await asyncio.sleep(self.limits.retry_wait * 2 ** (member.failures - 1))
            try:
                await member.server.get("/health", min(HEALTH_SECONDS, self.limits.timeout))
            except ServerUnavailable as error:
                member.failures += 1
                if member.failures > self.limits.retries:
                    self._failed_for_good(member, member.cause or error)
                    return
            except ServerRefused:
                break  # It has no such page, but it answers.
            else:
                break
        member.state = _State.UP
        self._dispatch()

    def _failed_for_good(self, member: _Member, cause: EngineError) -> None:
        promised = self.on_lost is not None and self.on_lost(self._members.index(member), cause)
        self._remove(member, cause, _State.AWAITED if promised else _State.LOST)

    def _remove(self, member: _Member, cause: EngineError, state: _State) -> None:
        if member.state is _State.LOST:
            return
        logger.error("%s is taken out of rotation: %s", member.server.url, cause)
        self._stop_recovery(member)
        self._first = self._first or cause
        member.state, member.cause = state, cause
        for task in list(member.running):
            task.cancel()
        self._dispatch()

    def _return(self, member: _Member, server: SGLangServer) -> None:
        self._stop_recovery(member)
        member.server, member.state, member.failures, member.cause = server, _State.UP, 0, None
        self._dispatch()

    def _stop_recovery(self, member: _Member) -> None:
        if member.recovery is not None and member.recovery is not asyncio.current_task():
            member.recovery.cancel()
        member.recovery = None


def servers_of(flag: str, urls: str | None) -> Sequence[SGLangServer]:
    """The servers of a comma-separated list.

    Raises:
        ConfigError: The list is empty, names a server twice, or holds what is no URL.
    """
    servers = [SGLangServer(url) for url in (urls or "").split(",") if url.strip()]
    if not servers:
        raise ConfigError(f"name the SGLang servers with {flag} http://HOST:PORT[,http://HOST:PORT]")
    twice = next((s.url for i, s in enumerate(servers) if s.url in [t.url for t in servers[:i]]), None)
    if twice is not None:
        raise ConfigError(f"{flag} names {twice} twice")
    return servers
