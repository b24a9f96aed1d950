"""Many requests at once, clients that go away, and the end of a gateway, through aiohttp."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import aiohttp

from gateway_parts import TASK, Scripted
from stacx_core.rollout.engine import Generation, GenerationRequest, RunningGroups, SamplingParams
from stacx_core.swe.gateway.batching import Batcher

SECONDS = 60
"""After which a wait has failed."""


class Gated(Scripted):
    """Answers when it is let to, and tells that it was asked."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def answers(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        self.asked.release()
        assert self.gate.acquire(timeout=SECONDS)
        return super().answers(requests, params)


class Several(Gated):
    """Can be interrupted, and so can answer several batches at a time."""

    def start(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> RunningGroups:
        raise AssertionError("the gateway has no use for it")


async def ask(http: aiohttp.ClientSession, gateway: Any, session: Any, text: str, **fields: Any) -> Any:
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    headers = {"Authorization": f"Bearer {gateway.key}"}
    async with http.post(f"{session.base_url}/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.json()


async def until(asked: threading.Semaphore) -> None:
    assert await asyncio.to_thread(asked.acquire, timeout=SECONDS)


async def waiting(gateway: Any, number: int) -> None:
    """Wait until so many requests wait for the engine."""
    async with asyncio.timeout(SECONDS):
        while gateway._model._student._queue.qsize() < number:
            await asyncio.sleep(0)


def test_what_waits_while_the_engine_is_busy_goes_together_and_none_is_lost(serve: Any, tokenizer: Any) -> None:
    engine = Gated(lambda prompt: prompt[-20:].split("\n")[0], tokenizer)
    gateway = serve(engine)
    sessions = [gateway.open(TASK) for _ in range(64)]

    async def run() -> list[Any]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            first = asyncio.create_task(ask(http, gateway, sessions[0], "0"))
            await until(engine.asked)
            others = [asyncio.create_task(ask(http, gateway, own, f"{i}")) for i, own in enumerate(sessions) if i]
            await waiting(gateway, 63)
            engine.gate.release(2)
            return await asyncio.gather(first, *others)

    answers = asyncio.run(run())
    assert [status for status, _ in answers] == [200] * 64
    assert [len(batch) for batch in engine.batches] == [1, 63]
    for session, (_, answer) in zip(sessions, answers, strict=True):
        (turn,) = gateway.finish(session, 0.0).turns
        assert turn.text == answer["choices"][0]["message"]["content"]
        assert (turn.context, turn.ids) in [(prompt, generation.ids) for prompt, generation in engine.said]


def test_an_engine_that_takes_several_batches_gets_each_request_at_once(serve: Any, tokenizer: Any) -> None:
    engine = Several(lambda prompt: "yes", tokenizer)
    gateway = serve(engine)

    async def run() -> list[Any]:
        async with aiohttp.ClientSession() as http:
            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(ask(http, gateway, gateway.open(TASK), f"{number}")))
                await until(engine.asked)
            engine.gate.release(3)
            return await asyncio.gather(*tasks)

    assert [status for status, _ in asyncio.run(run())] == [200] * 3
    assert [len(batch) for batch in engine.batches] == [1, 1, 1]


def test_requests_with_other_parameters_make_another_batch(serve: Any, tokenizer: Any) -> None:
    engine = Gated(lambda prompt: "yes", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)

    async def run() -> list[Any]:
        async with aiohttp.ClientSession() as http:
            tasks = [asyncio.create_task(ask(http, gateway, session, "first"))]
            await until(engine.asked)
            tasks += [asyncio.create_task(ask(http, gateway, session, "a", max_tokens=n)) for n in (1, 2, 1)]
            await waiting(gateway, 3)
            engine.gate.release(3)
            return await asyncio.gather(*tasks)

    assert [answer["usage"]["completion_tokens"] for _, answer in asyncio.run(run())] == [4, 1, 2, 1]
    assert sorted(len(batch) for batch in engine.batches) == [1, 1, 2]


def test_of_a_client_that_goes_away_nothing_is_recorded(serve: Any, tokenizer: Any) -> None:
    """Neither when its request is being answered nor when it still waits, in which case the engine never sees it."""
    engine = Gated(lambda prompt: "yes", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)

    async def run() -> Any:
        async with aiohttp.ClientSession() as http:
            gone = [asyncio.create_task(ask(http, gateway, session, "gone"))]
            await until(engine.asked)
            gone.append(asyncio.create_task(ask(http, gateway, session, "gone too", stream=True)))
            await waiting(gateway, 1)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            async with asyncio.timeout(SECONDS):
                while session.counts["abandoned"] < 2:
                    await asyncio.sleep(0)
            engine.gate.release(2)
            return await ask(http, gateway, session, "stays")

    status, _ = asyncio.run(run())
    assert status == 200
    assert [[tokenizer.decode(prompt).count("gone") for prompt, _ in batch] for batch in engine.batches] == [[1], [0]]
    (turn,) = gateway.finish(session, 0.0).turns
    assert turn.observation == "stays"


def test_an_answer_that_comes_when_the_session_is_over_is_not_recorded(serve: Any, tokenizer: Any) -> None:
    engine = Gated(lambda prompt: "yes", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)

    async def run() -> Any:
        async with aiohttp.ClientSession() as http:
            late = asyncio.create_task(ask(http, gateway, session, "late"))
            await until(engine.asked)
            episode = await asyncio.to_thread(gateway.finish, session, 1.0)
            engine.gate.release()
            return episode, await late

    episode, (status, answer) = asyncio.run(run())
    assert (status, answer["error"]["code"]) == (404, "session_not_found")
    assert episode.turns == []


def test_a_gateway_that_closes_lets_go_of_its_clients(serve: Any, tokenizer: Any) -> None:
    engine = Gated(lambda prompt: "yes", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)

    async def run() -> Any:
        async with aiohttp.ClientSession() as http:
            waiting = asyncio.create_task(ask(http, gateway, session, "waits"))
            await until(engine.asked)
            closing = asyncio.create_task(asyncio.to_thread(gateway.close))
            (left,) = await asyncio.gather(waiting, return_exceptions=True)
            engine.gate.release()
            await closing
            return left

    assert isinstance(asyncio.run(run()), aiohttp.ClientError)
    gateway.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "stacx-gateway-batches"]


def test_an_answer_is_what_answering_raised() -> None:
    """A batch fails as a whole, and the next one does not."""

    def answer(numbers: Sequence[int], params: SamplingParams) -> list[float]:
        return [1 / number for number in numbers]

    batcher = Batcher(answer)
    failed, good = batcher.ask(0, SamplingParams(1)), batcher.ask(4, SamplingParams(2))
    batcher.close()
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert good.result() == 0.25
