"""An sglang-router in front of the servers, which spreads requests by what their prefix caches hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from stacx_core.errors import ConfigError, EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.pool import ServerPool, servers_of
from stacx_core.rollout.sglang.server import SGLangServer

FLAG = "--sglang-router"
WORKERS = "/workers"
ANSWER_SECONDS = 30.0
"""How long it may take to answer."""
CHANGE_SECONDS = 60.0
"""How long it may take to use a server, or to use one no more."""
LOOK_SECONDS = 0.1

logger = logging.getLogger(__name__)


class Router:
    """Is sent the requests for a pool of servers, and told which of them are in rotation.

    It passes on generations and scores, and sends them elsewhere when a connection breaks. It does not pass on aborts,
    knows nothing of weights, and takes a minute or more to notice that a server hangs.

    Args:
        url: ``http://HOST:PORT``.
        servers: Those behind it.
    """

    def __init__(self, url: str, servers: ServerPool) -> None:
        limits = servers.limits
        self.server = SGLangServer(url)
        self.servers = servers
        self.pool = ServerPool([self.server], replace(limits, concurrency=limits.concurrency * len(servers.servers)))
        self._changing = asyncio.Lock()

    def start(self) -> None:
        """Have it use the servers, those it does not know yet included.

        Raises:
            ConfigError: It has others too.
            EngineError: It does not answer, or cannot reach a server.
        """
        ours = {server.url for server in self.servers.servers}
        if others := self.pool.run(self._workers()).keys() - ours:
            raise ConfigError(
                f"{FLAG} {self.server.url} asks {listed(others)} too, which --sglang-url does not name and "
                "which would not be given the policy's weights; name it there, letter by letter, or start a router "
                "without it"
            )
        self.pool.run(self._follow())

    def left(self, cause: EngineError) -> None:
        """Note that a server left the rotation. What is under way may be there, so all of it is asked for anew."""
        self.pool.lost(0, cause)
        try:
            any_left = self.pool.run(self._follow())
        except EngineError as error:
            logger.warning("a server that is out of rotation may still be asked: %s", error)
            any_left = True
        if any_left:
            self.pool.back(0, self.server.url)
        else:
            self.pool.gone(0, cause)

    def joined(self) -> None:
        """Note that a server is in rotation again.

        Raises:
            EngineError: It does not answer, or cannot reach the server.
        """
        self.pool.run(self._follow())
        self.pool.back(0, self.server.url)

    async def _follow(self) -> bool:
        """Have it use the servers in rotation and no others; whether there are any. Returns when it does."""
        async with self._changing:
            wanted = {server.url for server in self.servers.servers}
            there = await self._workers()
            for url in there.keys() - wanted:
                await self.server.delete(f"{WORKERS}/{there[url]}", ANSWER_SECONDS)
            for url in wanted - there.keys():
                await self.server.post(WORKERS, {"url": url}, ANSWER_SECONDS)
            deadline = time.monotonic() + CHANGE_SECONDS
            while (there := await self._workers()).keys() != wanted:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"{self.server.url} uses {listed(there)} where {listed(wanted)} was asked for, "
                        f"{CHANGE_SECONDS:g} s later"
                    )
                await asyncio.sleep(LOOK_SECONDS)
            return bool(wanted)

    async def _workers(self) -> dict[str, str]:
        """URL of each server that it uses -> its own name for it."""
        answer = await self.server.get(WORKERS, ANSWER_SECONDS)
        try:
            return {worker["url"].rstrip("/"): worker["id"] for worker in answer["workers"]}
        except (TypeError, KeyError, AttributeError) as error:
            raise EngineError(f"{FLAG}: what answers at {self.server.url} is no sglang-router") from error


def check_addresses(args: Args) -> None:
    """Refuse addresses that are none, or that two flags name, without asking anybody.

    Raises:
        ConfigError: Naming the flags.
    """
    named = {"--sglang-url": args.sglang_url, FLAG: args.sglang_router, "--teacher-url": args.get("teacher_url")}
    flags: dict[str, str] = {}
    for flag, urls in named.items():
        servers = servers_of(flag, urls) if urls is not None else []
        if flag == FLAG and len(servers) > 1:
            raise ConfigError(f"{FLAG} {urls!r} names several routers; name one")
        for server in servers:
            if (other := flags.setdefault(server.url, flag)) != flag:
                raise ConfigError(f"{other} and {flag} both name {server.url}, which can be only one of the two")


def listed(urls: Iterable[str]) -> str:
    """In words."""
    return ", ".join(sorted(urls)) or "no server"
