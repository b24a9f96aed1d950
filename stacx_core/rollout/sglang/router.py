"""An sglang-router in front of the servers, which spreads requests by what their prefix caches hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable
from dataclasses import replace

from stacx_core.errors import ConfigError, EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.identity import MODEL_INFO
from stacx_core.rollout.sglang.pool import ServerPool, servers_of
from stacx_core.rollout.sglang.scorer import settled
from stacx_core.rollout.sglang.server import ServerUnavailable, SGLangServer

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
        self._changing, self._checking = asyncio.Lock(), asyncio.Lock()

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
        try:
            removed, wanted = self.pool.run(self._follow())
        except EngineError as error:
            logger.warning("a server that is out of rotation may still be asked: %s", error)
            return
        if not wanted:
            self.pool.gone(0, cause)
        elif removed:
            self.pool.lost(0, cause)
            self.pool.back(0, self.server.url)

    def joined(self) -> None:
        """Note that a server is in rotation again.

        Raises:
            EngineError: It does not answer, or cannot reach the server.
        """
        self.pool.run(self._follow())
        self.pool.back(0, self.server.url)

    async def check(self, labels: Container[str]) -> None:
        """Take servers out of rotation whose weights have other labels: it does not tell whose answer it gave.

        Raises:
            ServerUnavailable: It does not answer, or not soon enough.
        """
        async with self._checking:
            servers = self.servers.servers
            answers = await settled(server.get(MODEL_INFO, ANSWER_SECONDS) for server in servers)
            for server, answer in zip(servers, answers, strict=True):
                label = answer.get("weight_version") if isinstance(answer, dict) else None
                if label is not None and label not in labels:
                    cause = f"{server.url} has weights labelled {label!r}, which this run did not send"
                    await self.servers.take_out(server.url, EngineError(cause))
            await self._follow()

    async def _follow(self) -> tuple[set[str], set[str]]:
        """Have it use the servers in rotation and no others; those it gave up, and those it has when this returns."""
        async with self._changing:
            wanted = {server.url for server in self.servers.servers}
            there = await self._workers()
            removed = there.keys() - wanted
            for url in removed:
                await self.server.delete(f"{WORKERS}/{there[url]}", ANSWER_SECONDS)
            for url in wanted - there.keys():
                await self.server.post(WORKERS, {"url": url}, ANSWER_SECONDS)
            deadline = time.monotonic() + CHANGE_SECONDS
            while (there := await self._workers()).keys() != wanted:
                if time.monotonic() > deadline:
                    raise ServerUnavailable(
                        f"{self.server.url} uses {listed(there)} where {listed(wanted)} was asked for, "
                        f"{CHANGE_SECONDS:g} s later"
                    )
                await asyncio.sleep(LOOK_SECONDS)
            return removed, wanted

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
