"""Responses under way, which can be stopped half-way."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import uuid4

from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.sglang.messages import GENERATE, generation_body, read_generation
from stacx_core.rollout.sglang.pool import ServerPool
from stacx_core.rollout.sglang.router import Router
from stacx_core.rollout.sglang.scorer import gathered, settled, understood
from stacx_core.rollout.sglang.server import ServerUnavailable, SGLangServer

ABORT_SECONDS = 5.0
"""How long a server may take to confirm an abort."""
ABORT_WAIT = 0.2
"""Seconds until what still runs is aborted again: a request may reach a server after the abort of it."""


NOTHING = Generation([], [], "abort")
"""A response that was not begun."""


class _NotSent(Exception):
    """There was no time for this request before the abort."""


class Responder:
    """Has single responses made, until it is told to stop.

    Args:
        pool: Who is asked.
        params: How to sample.
        stop_ids: Token ids that end a response.
        vocabulary: Number of the policy's ids.
        tries: How often a request is sent; the pool's by default.
        labels: Of weights that responses may be made with, and the versions that they stand for; any by default.
        router: What the pool is, where it is no server.
    """

    def __init__(
        self,
        pool: ServerPool,
        params: SamplingParams,
        stop_ids: Sequence[int],
        vocabulary: int,
        tries: int | None = None,
        labels: Mapping[str, str] | None = None,
        router: Router | None = None,
    ) -> None:
        self.pool = pool
        self.params = params
        self.stop_ids = stop_ids
        self.vocabulary = vocabulary
        self.tries = tries
        self.labels = labels
        self.router = router
        self.aborted = False
        self._sent: dict[str, SGLangServer] = {}
        self._waiting: set[asyncio.Task[Generation]] = set()
        """For a server that has room, or for one that is being brought back."""

    async def respond(self, prompt: Sequence[int], seed: int, begun: Generation = NOTHING) -> Generation:
        """One response, with ``finish`` ``abort`` if it did not come to its end.

        Args:
            prompt: Token ids.
            seed: Of the response.
            begun: What there is of it already.

        Raises:
            EngineError: It could not be had.
        """
        if begun.finish != "abort":
            return begun
        params = replace(self.params, max_new_tokens=self.params.max_new_tokens - len(begun.ids))
        if params.max_new_tokens <= 0:
            return replace(begun, finish="length")
        return self._joined(begun, await self._more([*prompt, *begun.ids], seed, params))

    async def _more(self, ids: Sequence[int], seed: int, params: SamplingParams) -> Generation:
        """What a server samples behind these ids."""

        async def send(server: SGLangServer) -> Generation:
            if self.aborted:
                raise _NotSent
            # An abort names requests by how their names begin, so names are of one length.
            rid = uuid4().hex
            self._sent[rid] = server
            self._waiting.discard(asked)
            try:
                body = generation_body(rid, ids, seed, params, self.stop_ids)
                answer = await server.post(GENERATE, body, self.pool.limits.timeout)
                aborted = self.aborted
                generation = understood(
                    server, GENERATE, lambda: read_generation(answer, params, self.vocabulary, aborted=aborted)
                )
                return await self._versioned(server, generation)
            except BaseException:
                self._waiting.add(asked)  # It may be tried again.
                raise
            finally:
                del self._sent[rid]

        asked = asyncio.ensure_future(self.pool.ask(send, self.tries))
        self._waiting.add(asked)
        try:
            return await asked
        except _NotSent:
            return NOTHING
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.aborted or (current is not None and current.cancelling()):
                raise
            return NOTHING
        finally:
            self._waiting.discard(asked)

    def _joined(self, begun: Generation, more: Generation) -> Generation:
        ids, finish = [*begun.ids, *more.ids], more.finish
        # A server that aborts does not look whether the last token ended the response.
        if finish == "abort" and ids:
            full = len(ids) >= self.params.max_new_tokens
            finish = "stop" if ids[-1] in self.stop_ids else "length" if full else "abort"
        versions = [*begun.weight_versions, *more.weight_versions]
        return Generation(ids, [*begun.log_probs, *more.log_probs], finish, versions)

    async def _versioned(self, server: SGLangServer, generation: Generation) -> Generation:
        """The response with versions in the place of labels.

        Raises:
            ServerUnavailable: Somebody started the server anew, or gave it other weights.
        """
        if self.labels is None:
            return generation
        foreign = next((label for label in generation.weight_versions if label not in self.labels), None)
        if foreign is None:
            return replace(generation, weight_versions=[self.labels[label] for label in generation.weight_versions])
        if self.router is not None:
            await self.router.check(self.labels)
        raise ServerUnavailable(f"{server.url} sampled with weights labelled {foreign!r}, which this run did not send")

    def _makers(self, asked: SGLangServer) -> Sequence[SGLangServer]:
        """Who may be making what was asked for; a router does not tell them to abort it."""
        return [asked] if self.router is None else self.router.servers.servers

    async def abort(self) -> None:
        """Stop what the servers are doing, and send no more."""
        self.aborted = True
        while self._sent or self._waiting:
            for asked in self._waiting:
                asked.cancel()
            sent = [(rid, server) for rid, asked in self._sent.items() for server in self._makers(asked)]
            await settled(server.post("/abort_request", {"rid": rid}, ABORT_SECONDS) for rid, server in sent)
            await asyncio.sleep(ABORT_WAIT)


class RunningBatch:
    """Iterates over ``(index of the request, its responses)`` as groups are completed. Leaving it ends what still runs.

    Args:
        responder: Makes the responses.
        requests: What for.
    """

    def __init__(self, responder: Responder, requests: Sequence[GenerationRequest]) -> None:
        self._responder = responder
        self._done: queue.SimpleQueue[tuple[int, list[Generation]] | BaseException | None] = queue.SimpleQueue()
        self._unfinished: dict[int, list[Generation]] = {}
        self._cancel = responder.pool.start(self._all(requests))

    @property
    def aborted(self) -> bool:
        """Whether it was told to stop before all responses had come to their end."""
        return self._responder.aborted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel()

    def __iter__(self) -> Iterator[tuple[int, list[Generation]]]:
        """Groups whose responses all came to their end, as they do.

        Raises:
            EngineError: A response could not be had.
        """
        while (done := self._done.get()) is not None:
            if isinstance(done, BaseException):
                raise done
            index, group = done
            if any(generation.finish == "abort" for generation in group):
                self._unfinished[index] = group
            else:
                yield index, group

    def abort(self) -> dict[int, list[Generation]]:
        """Stop what still runs, and return the groups that were not handed out yet, by the index of their request.

        What a server had sampled is in them, with ``finish`` ``abort`` where a response had not come to its end; one
        that had not begun is empty.

        Raises:
            EngineError: A response could not be had.
        """
        self.request_abort()
        rest = dict(self)
        return {**rest, **self._unfinished}

    def request_abort(self) -> None:
        """Stop what still runs, without waiting for it; from any thread."""
        self._responder.pool.start(self._responder.abort())

    async def _all(self, requests: Sequence[GenerationRequest]) -> None:
        try:
            await gathered(self._group(index, request) for index, request in enumerate(requests))
        except BaseException as error:
            self._done.put(error)
            raise
        self._done.put(None)

    async def _group(self, index: int, request: GenerationRequest) -> None:
        begun = request.begun or [NOTHING] * len(request.seeds)
        each = zip(request.seeds, begun, strict=True)
        group = await gathered(self._responder.respond(request.prompt, seed, so_far) for seed, so_far in each)
        self._done.put((index, group))
