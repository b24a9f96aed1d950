"""Requests as clients send them, and the errors of the protocol."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway_parts import BASH, TASK, Scripted, chat_tokenizer, send
from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.engine import SamplingParams
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.server import SESSION_HEADER
from stacx_core.swe.gateway.settings import GatewaySettings

USER = {"role": "user", "content": "hi"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
}


@pytest.fixture
def gateway(serve: Any, tokenizer: Any) -> Gateway:
    return serve(Scripted(lambda prompt: "one two three", tokenizer), max_new_tokens=8, limit=200)


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status == status, answer.text
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_it_listens_on_the_loopback_interface_only(gateway: Gateway) -> None:
    assert urlsplit(gateway.url).hostname == "127.0.0.1"


def test_models(gateway: Gateway) -> None:
    answer = send(f"{gateway.url}/v1/models", gateway.key)
    own = {"id": "policy", "object": "model", "created": 0, "owned_by": "stacx", "max_model_len": 200}
    assert answer.json == {"object": "list", "data": [own]}
    session = gateway.open(TASK)
    assert send(f"{session.base_url}/models/policy", gateway.key).json == own
    assert error_of(send(f"{gateway.url}/v1/models/gpt/4", gateway.key), 404)["code"] == "model_not_found"


def test_a_completion(gateway: Gateway, chat: Any) -> None:
    answer = chat(gateway, gateway.open(TASK), [USER]).json
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "policy"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one two ", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)


def test_a_session_by_header(gateway: Gateway) -> None:
    session = gateway.open(TASK, name="agent-1")
    body = {"model": "policy", "messages": [USER]}
    answer = send(f"{gateway.url}/v1/chat/completions", gateway.key, body, **{SESSION_HEADER: "agent-1"})
    assert answer.status == 200
    assert len(gateway.finish(session, 0.0).turns) == 1


@pytest.mark.parametrize("key", ["", "sk-other", "clé"])
def test_a_wrong_key_is_refused_everywhere(gateway: Gateway, key: str) -> None:
    session = gateway.open(TASK)
    for url in (f"{session.base_url}/chat/completions", f"{gateway.url}/v1/models", f"{gateway.url}/nothing"):
        assert error_of(send(url, key.encode().decode("latin-1")), 401)["code"] == "invalid_api_key"
    assert gateway.finish(session, 0.0).turns == []


def test_each_gateway_has_a_key_and_a_port_of_its_own(serve: Any, gateway: Gateway, tokenizer: Any) -> None:
    other = serve(Scripted(str, tokenizer))
    assert other.key != gateway.key
    assert other.url != gateway.url


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "usr", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [USER, CALLED, {"role": "tool", "content": "x", "tool_call_id": "c2"}]}, "messages[2].tool_call_id"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c1"}]}]}, "messages[1].tool_calls[0]"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": "ls"}]}, "messages[1].tool_calls"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
    ({"tool_choice": "required", "tools": [BASH]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": [BASH]}, "tool_choice"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
    ({"temprature": 1.0}, "temprature"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{param}-{i}" for i, (_, param) in enumerate(WRONG)])
def test_what_is_malformed_or_not_offered_is_named(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    session = gateway.open(TASK)
    body = {"model": "policy", "messages": [USER], **fields}
    error = error_of(send(f"{session.base_url}/chat/completions", gateway.key, body), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param.split(".")[0].split("[")[0] in error["message"]
    assert session.counts["refused"] == 1
    assert gateway.finish(session, 0.0).turns == []


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"3", b"", b'{"a":' * 50_000])
def test_a_body_that_is_no_object_of_json(gateway: Gateway, body: bytes) -> None:
    error_of(send(f"{gateway.open(TASK).base_url}/chat/completions", gateway.key, body), 400)


@pytest.mark.parametrize("model", ["gpt-4", None, 3])
def test_an_unknown_model(gateway: Gateway, chat: Any, model: Any) -> None:
    error = error_of(chat(gateway, gateway.open(TASK), [USER], model=model), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'policy'" in error["message"]


def test_unknown_places(gateway: Gateway) -> None:
    body = {"model": "policy", "messages": [USER]}
    error_of(send(f"{gateway.url}/v2", gateway.key), 404)
    error_of(send(f"{gateway.url}/v1/chat/completions", gateway.key), 405)
    assert error_of(send(f"{gateway.url}/v1/chat/completions", gateway.key, body), 400)["code"] == "session_missing"
    url = f"{gateway.url}/session/other/v1/chat/completions"
    assert error_of(send(url, gateway.key, body), 404)["code"] == "session_not_found"


def test_a_session_that_is_over_takes_no_request(gateway: Gateway, chat: Any) -> None:
    session = gateway.open(TASK)
    gateway.finish(session, 0.0)
    assert error_of(chat(gateway, session, [USER]), 404)["code"] == "session_not_found"


@pytest.mark.parametrize("name", ["a/b", "..", "", "a b", "twice"])
def test_names_that_no_session_can_have(gateway: Gateway, name: str) -> None:
    gateway.open(TASK, name="twice")
    with pytest.raises(ValueError, match="a session cannot be called"):
        gateway.open(TASK, name=name)


def test_fields_that_change_nothing_are_taken(gateway: Gateway, chat: Any) -> None:
    harmless = {"n": 1, "user": "me", "frequency_penalty": 0.0, "logit_bias": {}, "top_p": None, "tools": []}
    assert chat(gateway, gateway.open(TASK), [USER], parallel_tool_calls=True, **harmless).status == 200


def test_messages_in_all_their_forms(gateway: Gateway, chat: Any) -> None:
    """A client library sends back whatever fields its own messages have."""
    session = gateway.open(TASK)
    echoed = {**CALLED, "function_call": None, "refusal": None, "annotations": []}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    result = {"role": "tool", "tool_call_id": "c1", "content": parts, "name": "bash"}
    developer = {"role": "developer", "content": "d"}
    assert chat(gateway, session, [developer, {**USER, "name": "me"}, echoed, result]).status == 200
    (turn,) = gateway.finish(session, 0.0).turns
    assert turn.observation == "ab"


def test_messages_that_fill_the_context_are_refused_and_others_get_what_is_left(gateway: Gateway, chat: Any) -> None:
    """A message of n bytes has 19 ids around it, of 200."""
    session = gateway.open(TASK)
    error = error_of(chat(gateway, session, [{"role": "user", "content": "x" * 200}]), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == "This model's maximum context length is 200 tokens, and the messages have 219"
    answer = chat(gateway, session, [{"role": "user", "content": "x" * 178}])
    assert answer.json["usage"] == {"prompt_tokens": 197, "completion_tokens": 3, "total_tokens": 200}
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert session.counts == Counter(context_overflows=1, cut=1)
    assert gateway.finish(session, 0.0).outcome == "done", "the harness found its way"


def test_a_run_that_ends_at_a_full_context_says_so(gateway: Gateway, chat: Any) -> None:
    session = gateway.open(TASK)
    chat(gateway, session, [USER])
    chat(gateway, session, [{"role": "user", "content": "x" * 200}])
    episode = gateway.finish(session, 0.0)
    assert (episode.outcome, episode.failed) == ("context_overflow", False)


@pytest.mark.parametrize(
    ("asked", "content", "count"),
    [
        ({"max_tokens": 3}, "one", 3),
        ({"max_completion_tokens": 4, "max_tokens": 3}, "one ", 4),
        ({"max_tokens": 99}, "one two ", 8),
        ({"stop": "two"}, "one ", 7),
        ({"stop": ["x", "e t"]}, "on", 5),
        ({"stop": "three"}, "one two ", 8),
    ],
)
def test_where_an_answer_ends(gateway: Gateway, chat: Any, asked: dict[str, Any], content: str, count: int) -> None:
    """At the tokens that the client or the run allows, or before a text, whose own ids are recorded."""
    session = gateway.open(TASK)
    answer = chat(gateway, session, [USER], **asked).json
    assert answer["choices"][0]["message"]["content"] == content
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == ("stop" if content in ("one ", "on") and count > 4 else "length")
    (turn,) = gateway.finish(session, 0.0).turns
    assert (len(turn.ids), len(turn.log_probs), turn.text) == (count, count, content)


class Failing(Scripted):
    """An engine that fails at first."""

    error: Exception = EngineError("http://x: no answer")

    def answers(self, requests: Any, params: SamplingParams) -> Any:
        if not self.batches:
            self.batches.append([])
            raise self.error
        return super().answers(requests, params)


@pytest.mark.parametrize(("error", "status"), [(EngineError("away"), 503), (ValueError("broken"), 500)])
def test_an_engine_that_fails(serve: Any, chat: Any, tokenizer: Any, error: Exception, status: int) -> None:
    """The run fails with it, unless the harness asks again."""
    engine = Failing(lambda prompt: "yes", tokenizer)
    engine.error = error
    gateway = serve(engine)
    session = gateway.open(TASK)
    told = error_of(chat(gateway, session, [USER]), status)
    assert told["type"] == "server_error"
    assert str(error) in told["message"]
    assert session.trouble is not None
    assert chat(gateway, session, [USER]).status == 200
    episode = gateway.finish(session, 1.0)
    assert (episode.outcome, len(episode.turns)) == ("done", 1)


def test_a_run_whose_engine_failed_is_not_trained_on(serve: Any, chat: Any, tokenizer: Any) -> None:
    gateway = serve(Failing(lambda prompt: "yes", tokenizer))
    session = gateway.open(TASK)
    chat(gateway, session, [USER])
    episode = gateway.finish(session, 1.0)
    assert (episode.outcome, episode.error) == ("env_error", "EngineError: http://x: no answer")
    assert episode.failed


def test_a_template_that_refuses(serve: Any, chat: Any, tokenizer: Any) -> None:
    strict = chat_tokenizer()
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    gateway = serve(Scripted(str, strict), speaks=strict)
    error = error_of(chat(gateway, gateway.open(TASK), [USER]), 400)
    assert "roles must alternate" in error["message"]


def test_a_tokenizer_without_a_template_is_refused() -> None:
    plain = chat_tokenizer()
    plain.chat_template = None
    with pytest.raises(ConfigError, match="has no chat template"):
        Gateway(GatewaySettings("policy", SamplingParams(8)), plain, None)


class Asked(Scripted):
    """Keeps the parameters and seeds of its requests."""

    def answers(self, requests: Any, params: SamplingParams) -> Any:
        self.told = (params, *(seed for request in requests for seed in request.seeds))
        return super().answers(requests, params)


def test_whose_sampling_counts(serve: Any, chat: Any, tokenizer: Any) -> None:
    """In a run that trains, the run's: a harness does not know at which temperature its samples will be scored."""
    wanted = {"temperature": 0.0, "top_p": 0.5, "seed": 7}
    own, theirs = Asked(str.upper, tokenizer), Asked(str.upper, tokenizer)
    trains, obeys = serve(own), serve(theirs, sampling="request")
    chat(trains, trains.open(TASK), [USER], **wanted)
    chat(obeys, obeys.open(TASK), [USER], **wanted)
    assert own.told[0] == SamplingParams(24)
    assert own.told[1] != 7
    assert theirs.told == (SamplingParams(24, 0.0, 0.5), 7)
    chat(obeys, obeys.open(TASK), [USER])
    assert theirs.told == own.told


def test_a_body_beyond_the_limit(gateway: Gateway) -> None:
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "x" * (65 * 2**20)}]}).encode()
    error_of(send(f"{gateway.open(TASK).base_url}/chat/completions", gateway.key, body), 413)
