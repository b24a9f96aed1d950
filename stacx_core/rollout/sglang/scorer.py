"""Scoring given tokens on SGLang servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.sglang.messages import GENERATE, Scored, read_score, score_body
from stacx_core.rollout.sglang.pool import ServerPool
from stacx_core.rollout.sglang.server import ServerRefused, SGLangServer, WrongAnswer
from stacx_core.rollout.teachers.protocol import TeacherScore

T = TypeVar("T")


@dataclass(frozen=True)
class ServerScorer:
    """Scores the very token ids of samples.

    Args:
        pool: Servers of one model.
        vocabulary: Number of that model's ids. A server dies of an id beyond them, so none is ever sent.
        told: Only ids below it are told among the likeliest ones; all by default.
        tries: How often a sample is sent; the pool's by default.
    """

    pool: ServerPool
    vocabulary: int
    told: int | None = None
    tries: int | None = None

    async def score(self, sample: Sample, top_k: int, temperature: float) -> TeacherScore:
        """Log-probs of the response, and the ``top_k`` likeliest ids at each of its positions.

        Raises:
            ConfigError: ``top_k`` is above the vocabulary, or the sample has an id beyond it.
            EngineError: No server gave a good answer.
        """
        told = min(self.told or self.vocabulary, self.vocabulary)
        if top_k > told:
            raise ConfigError(f"the {top_k} likeliest of {told} token ids were asked for; ask for at most {told}")
        # Ids that are not told may be among the likeliest ones: so many more are asked for.
        width = min(top_k + self.vocabulary - told, self.vocabulary) if top_k else 0
        scored = await self._asked(sample, temperature, width, [])
        if not top_k:
            return TeacherScore(scored.log_probs)
        rows = [[entry for entry in row if entry[1] < told][:top_k] for row in scored.likeliest]
        ids = [[index for _, index in row] for row in rows]
        return TeacherScore(scored.log_probs, ids, [[value for value, _ in row] for row in rows])

    async def query(self, sample: Sample, ids: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Log-probs of given ids ``[R][K]``; the server tells those of all of them at every position.

        Raises:
            ConfigError: An id is beyond the vocabulary.
            EngineError: No server gave a good answer.
        """
        union = sorted({index for row in ids for index in row})
        check_ids(f"the ids asked for at {sample.describe()}", union, self.vocabulary)
        scored = await self._asked(sample, temperature, 0, union)
        told = [{index: value for value, index in row} for row in scored.asked] or [{} for _ in ids]
        return [[values[index] for index in row] for values, row in zip(told, ids, strict=True)]

    async def _asked(self, sample: Sample, temperature: float, width: int, ids: Sequence[int]) -> Scored:
        check_ids(sample.describe(), sample.tokens, self.vocabulary)
        body = score_body(sample.tokens, sample.response_length, temperature, width, ids)

        async def send(server: SGLangServer) -> Scored:
            answer = await server.post(GENERATE, body, self.pool.limits.timeout)
            return understood(server, GENERATE, lambda: read_score(answer, sample.response_length, width, len(ids)))

        return await self.pool.ask(send, self.tries)


def understood(server: SGLangServer, path: str, read: Callable[[], T]) -> T:
    """What a reader makes of a server's answer.

    Raises:
        WrongAnswer: It makes nothing of it.
    """
    try:
        return read()
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise WrongAnswer(f"{server.url}{path} gave a wrong answer: {error}") from error


def check_ids(what: str, ids: Sequence[int], vocabulary: int) -> None:
    """Refuse ids that the server's model does not have.

    Raises:
        ConfigError: Naming the first.
    """
    if ids and (min(ids) < 0 or max(ids) >= vocabulary):
        wrong = next(index for index in ids if not 0 <= index < vocabulary)
        raise ConfigError(f"{what}: the token id {wrong} was not sent; the server's model has 0 to {vocabulary - 1}")


async def gathered(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of calls made at a time, in order; the first error ends the others."""
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def settled(calls: Iterable[Awaitable[T]]) -> list[T | EngineError]:
    """The result or the ``EngineError`` of each of some calls, in order; any other error, or a refusal, is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    told: list[T | EngineError] = []
    for result in results:
        if isinstance(result, BaseException) and not _may_be_told(result):
            raise result
        told.append(cast("T | EngineError", result))
    return told


def _may_be_told(error: BaseException) -> bool:
    return isinstance(error, EngineError) and not isinstance(error, ServerRefused)
