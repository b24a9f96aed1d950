"""The gateway through the client library that harnesses use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway_parts import BASH, TASK, Scripted

openai = pytest.importorskip("openai", reason="install the package openai to test the gateway through its client")

CALL = 'look\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


@pytest.fixture
def gateway(serve: Any, tokenizer: Any) -> Any:
    return serve(
        Scripted(lambda prompt: "all done" if "tool_response" in prompt else CALL, tokenizer), max_new_tokens=100
    )


@pytest.fixture
def session(gateway: Any) -> Any:
    return gateway.open(TASK)


@pytest.fixture
def client(gateway: Any, session: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=session.base_url, api_key=gateway.key, max_retries=0) as made:
        yield made


def test_a_tool_is_called_and_answered(gateway: Any, session: Any, client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    first = client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
    (choice,) = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "look")
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("bash", '{"command": "ls"}')
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "a.py"}]
    second = client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
    assert second.choices[0].message.content == "all done"
    assert second.usage.total_tokens == second.usage.prompt_tokens + 9
    (sample,) = gateway.finish(session, 1.0).samples(0, 0)
    assert sum(sample.mask) == first.usage.completion_tokens + second.usage.completion_tokens


def test_a_stream_adds_up_to_the_answer(gateway: Any, session: Any, client: Any) -> None:
    with client.chat.completions.stream(
        model="policy",
        messages=[{"role": "user", "content": "go"}],
        tools=[BASH],
        stream_options={"include_usage": True},
    ) as stream:
        for _ in stream:
            pass
        whole = stream.get_final_completion()
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "look")
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("bash", '{"command": "ls"}')
    turn = gateway.finish(session, 1.0).turns[0]
    assert whole.usage.completion_tokens == len(turn.ids)
    assert turn.text == CALL


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["policy"]
    assert client.models.retrieve("policy").owned_by == "stacx"


def test_errors_are_the_clients_own(gateway: Any, session: Any, client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").chat.completions.create(model="policy", messages=messages)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-4", messages=messages)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * 4000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="n is not offered"):
        client.chat.completions.create(model="policy", messages=messages, n=3)


def test_the_session_may_be_named_by_a_header(gateway: Any, session: Any) -> None:
    headers = {"X-Stacx-Session": session.name}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, default_headers=headers) as client:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "go"}])
    assert len(gateway.finish(session, 1.0).turns) == 1
