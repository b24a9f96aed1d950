"""A model behind HTTP: what is sent, what is tried again, and what each refusal means."""

from __future__ import annotations

import asyncio
import json

import pytest

from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.engine import SamplingParams
from stacx_core.swe.evaluation.endpoint import ContextOverflow, Endpoint

PARAMS = SamplingParams(7, 0.5, 0.9)
TALK = [{"role": "user", "content": "Hé"}]
AT_ONCE = (0.0, 0.0)


def test_what_is_sent_and_what_comes_back(server):
    server.answer = lambda messages: messages[-1]["content"] + "!"
    endpoint = Endpoint(server.url, key="secret")
    said = asyncio.run(endpoint.answer(TALK, PARAMS, seed=11))
    assert (said.text, said.tokens, said.cut) == ("Hé!", 3, False)
    (listed, _, _), (path, headers, body) = server.asked
    assert (listed, path, headers["Authorization"]) == ("/v1/models", "/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "first", "messages": TALK, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 11,
    }  # fmt: skip


def test_a_named_model_and_a_path_are_taken_as_they_are(server):
    endpoint = Endpoint(f"{server.url}/v1/", "mine")
    asyncio.run(endpoint.answer(TALK, PARAMS, 0))
    ((path, headers, body),) = server.asked
    assert (path, body["model"], "Authorization" in headers) == ("/v1/chat/completions", "mine", False)


def test_a_busy_server_is_asked_again(server):
    endpoint = Endpoint(server.url, "m", waits=AT_ONCE)
    server.refusals = [(503, "busy"), (429, "slow down")]
    assert "submit" in asyncio.run(endpoint.answer(TALK, PARAMS, 0)).text
    server.refusals = [(503, "busy")] * 3
    with pytest.raises(EngineError, match="does not answer, after 3 tries: 503"):
        asyncio.run(endpoint.answer(TALK, PARAMS, 0))


def test_what_is_no_json_is_asked_again(server):
    server.refusals = [(200, "<html>")]
    assert Endpoint(server.url, waits=AT_ONCE).model == "first"


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        json.dumps({"error": {"code": "context_length_exceeded", "message": "too many"}}),
        "Input is too long for the context of the model",
    ],
)
def test_a_full_context_is_told_from_other_refusals(server, text):
    endpoint = Endpoint(server.url, "m", waits=AT_ONCE)
    server.refusals = [(400, text)]
    with pytest.raises(ContextOverflow):
        asyncio.run(endpoint.answer(TALK, PARAMS, 0))
    server.refusals = [(401, text)]
    with pytest.raises(EngineError, match="refuses: 401"):
        asyncio.run(endpoint.answer(TALK, PARAMS, 0))


@pytest.mark.parametrize("text", ["[]", "{}", '{"choices": []}', '{"choices": [{}]}', '{"choices": [{"message": 3}]}'])
def test_what_is_no_completion_is_an_error(server, text):
    endpoint = Endpoint(server.url, "m", waits=AT_ONCE)
    server.refusals = [(200, text)]
    with pytest.raises(EngineError, match="gave no chat completion"):
        asyncio.run(endpoint.answer(TALK, PARAMS, 0))


def test_a_url_that_is_none_and_a_server_that_is_gone(server):
    for url in ("localhost:8000", "ftp://x", "http://"):
        with pytest.raises(ConfigError, match="is no URL"):
            Endpoint(url)
    server.refusals = [(200, '{"data": []}')]
    with pytest.raises(EngineError, match="lists no model"):
        Endpoint(server.url)
    with pytest.raises(EngineError, match="after 3 tries"):
        Endpoint("http://127.0.0.1:9/v1", waits=AT_ONCE)
