"""The gateway in front of SGLang servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stacx_core import SamplingParams
from stacx_core.backends.model import load_tokenizer
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool
from stacx_core.rollout.sglang.server import SGLangServer
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.settings import GatewaySettings

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '<end>' if m.role == 'assistant' else '=' }}{% endfor %}"


@pytest.fixture
def gateway_of(checkpoint: Path) -> Iterator[Any]:
    """A gateway in front of a server, with a chat template for the character tokenizer."""
    opened: list[Gateway] = []

    def build(server: Any) -> Gateway:
        tokenizer = load_tokenizer(str(checkpoint))
        tokenizer.chat_template = TEMPLATE
        pool = ServerPool([SGLangServer(server.url)], Limits(retries=0, retry_wait=0.01, timeout=10))
        engine = SGLangEngine(pool, [0], 14)
        opened.append(Gateway(GatewaySettings("policy", SamplingParams(3), 32), tokenizer, engine))
        return opened[-1]

    yield build
    for gateway in opened:
        gateway.close()


def ask(gateway: Gateway, session: Any, *texts: str) -> tuple[int, Any]:
    """A conversation of texts of the user and the assistant in turn."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {gateway.key}"}
    try:
        with urlopen(Request(f"{session.base_url}/chat/completions", body, headers), timeout=60) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def test_requests_that_come_at_once_are_with_the_server_at_once(fake: Any, gateway_of: Any) -> None:
    """It answers none of them before all are there."""
    server = fake()
    server.awaited = 8
    gateway = gateway_of(server)
    sessions = [gateway.open(EpisodeTask(number, 0, number, "t")) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda pair: ask(gateway, pair[1], f"{pair[0]}+1"), enumerate(sessions)))
    assert [status for status, _ in answers] == [200] * 8
    for number, session in enumerate(sessions):
        (sample,) = gateway.finish(session, 1.0).samples(0, 0)
        assert sample.tokens[: sample.prompt_length] == [2 + number, 12, 3, 13]
        assert sample.weight_versions == ["3"]


def test_a_server_is_asked_with_the_very_ids_that_it_gave(fake: Any, gateway_of: Any) -> None:
    server = fake()
    gateway = gateway_of(server)
    session = gateway.open(EpisodeTask(0, 0, 0, "t"))
    _, first = ask(gateway, session, "1+1")
    ask(gateway, session, "1+1", first["choices"][0]["message"]["content"], "2")
    one, two = (turn for turn in gateway.finish(session, 1.0).turns)
    asked = [body["input_ids"] for body in server.bodies]
    assert asked == [one.context, two.context]
    end = [] if one.ids[-1] == 0 else [0]
    assert two.context == [*one.context, *one.ids, *end, 4, 13]


def test_a_server_that_is_away_is_told_as_503(fake: Any, gateway_of: Any) -> None:
    gateway = gateway_of(fake(always=500))
    session = gateway.open(EpisodeTask(0, 0, 0, "t"))
    status, answer = ask(gateway, session, "1+1")
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    assert gateway.finish(session, 0.0).outcome == "env_error"
