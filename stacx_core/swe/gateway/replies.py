"""Answers as the protocol's objects: whole, or in pieces."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from stacx_core.data.sample import Message
from stacx_core.rollout.episodes import Turn
from stacx_core.swe.gateway.messages import as_object
from stacx_core.swe.gateway.requests import ChatRequest
from stacx_core.swe.gateway.tool_calls import ParsedText, parse_tool_calls

_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True)
class Reply:
    """The answer to a request.

    Args:
        turn: What was generated.
        message: In the form of a request's messages, as a harness will send it back.
        whole: The object ``chat.completion``.
        malformed: Tool calls that could not be read.
    """

    turn: Turn
    message: Message
    whole: dict[str, Any]
    malformed: int = 0


def reply_to(request: ChatRequest, turn: Turn, model: str) -> Reply:
    """The reply that a turn is, with its tool calls found where the request allows for some.

    Args:
        request: What was asked.
        turn: What was generated.
        model: The name that is served.
    """
    parsed = parse_tool_calls(turn.text, request.tool_types) if request.calls_tools else ParsedText(turn.text)
    finish = "length" if turn.cut else "tool_calls" if parsed.calls else "stop"
    prompt, completion = len(turn.context), len(turn.ids)
    whole = {
        **{"id": f"chatcmpl-{uuid4().hex}", "object": "chat.completion", "created": int(time.time()), "model": model},
        "choices": [{"index": 0, "message": _told(parsed), "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }
    return Reply(turn, _message(parsed), whole, parsed.malformed)


def pieces(whole: dict[str, Any], *, usage: bool) -> Iterator[dict[str, Any]]:
    """The objects ``chat.completion.chunk``: the role, the text word by word, the calls, the end, the usage.

    Args:
        whole: The object ``chat.completion``, of one choice.
        usage: Whether the last one counts the tokens.
    """
    (choice,) = whole["choices"]
    message = {name: value for name, value in choice["message"].items() if value is not None}
    text, calls = message.pop("content", ""), message.pop("tool_calls", ())
    deltas: list[dict[str, Any]] = [{**message, "role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _WORD.findall(text)]
    deltas += [{"tool_calls": [{**call, "index": index}]} for index, call in enumerate(calls)]
    head = {**{name: whole.get(name) for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    counted = {"usage": None} if usage else {}
    for delta in deltas:
        yield {**head, "choices": [_part(delta, None)], **counted}
    yield {**head, "choices": [_part({}, choice.get("finish_reason"))], **counted}
    if usage:
        yield {**head, "choices": [], "usage": whole.get("usage")}


def _part(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _message(parsed: ParsedText) -> Message:
    functions = [{"name": call.name, "arguments": as_object(call.arguments)} for call in parsed.calls]
    calls = [{"type": "function", "function": function} for function in functions]
    message: Message = {"role": "assistant", "content": parsed.content}
    return {**message, "tool_calls": calls} if calls else message


def _told(parsed: ParsedText) -> dict[str, Any]:
    """The message as a client gets it."""
    functions = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
    calls = [{"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function} for function in functions]
    content = None if calls and not parsed.content.strip() else parsed.content
    message = {"role": "assistant", "content": content, "refusal": None}
    return {**message, "tool_calls": calls} if calls else message


def models(name: str, limit: int | None) -> dict[str, Any]:
    """The list of the models that are served: one."""
    return {"object": "list", "data": [model(name, limit)]}


def model(name: str, limit: int | None) -> dict[str, Any]:
    """The object ``model``; ``max_model_len`` is where other servers tell the length of the context."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "stacx", "max_model_len": limit}
