"""Answers as the protocol's objects: whole, or in pieces."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
        model: The name that is served.
        turn: What was generated.
        parsed: Its text, with tool calls apart.
        identity: Of the completion.
        call_ids: Of its tool calls.
        created: Seconds since 1970.
    """

    model: str
    turn: Turn
    parsed: ParsedText
    identity: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    call_ids: list[str] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))

    def message(self) -> Message:
        """In the form of a request's messages, as a harness will send it back."""
        functions = [{"name": call.name, "arguments": as_object(call.arguments)} for call in self.parsed.calls]
        calls = [{"type": "function", "function": function} for function in functions]
        message: Message = {"role": "assistant", "content": self.parsed.content}
        return {**message, "tool_calls": calls} if calls else message

    def whole(self) -> dict[str, Any]:
        """The object ``chat.completion``."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self.parsed.calls:
            message["tool_calls"] = self._calls()
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage}

    def pieces(self, *, usage: bool) -> Iterator[dict[str, Any]]:
        """The objects ``chat.completion.chunk``: the role, the text word by word, the calls, the end, the usage."""
        yield self._piece({"role": "assistant", "content": ""}, usage=usage)
        for word in _WORD.findall(self.parsed.content):
            yield self._piece({"content": word}, usage=usage)
        for index, call in enumerate(self._calls()):
            yield self._piece({"tool_calls": [{"index": index, **call}]}, usage=usage)
        yield self._piece({}, self._finish, usage=usage)
        if usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage}

    @property
    def _content(self) -> str | None:
        return None if self.parsed.calls and not self.parsed.content.strip() else self.parsed.content

    @property
    def _finish(self) -> str:
        if self.turn.cut:
            return "length"
        return "tool_calls" if self.parsed.calls else "stop"

    @property
    def _usage(self) -> dict[str, int]:
        prompt, completion = len(self.turn.context), len(self.turn.ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _calls(self) -> list[dict[str, Any]]:
        functions = [{"name": call.name, "arguments": call.arguments} for call in self.parsed.calls]
        pairs = zip(self.call_ids, functions, strict=True)
        return [{"id": identity, "type": "function", "function": function} for identity, function in pairs]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model}

    def _piece(self, delta: dict[str, Any], finish: str | None = None, *, usage: bool) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**head, "usage": None} if usage else head


def reply_to(request: ChatRequest, turn: Turn, model: str) -> Reply:
    """The reply that a turn is, with its tool calls found where the request allows for some."""
    parsed = parse_tool_calls(turn.text, request.tool_types) if request.calls_tools else ParsedText(turn.text)
    return Reply(model, turn, parsed, call_ids=[f"call_{uuid4().hex[:24]}" for _ in parsed.calls])


def models(name: str, limit: int | None) -> dict[str, Any]:
    """The list of the models that are served: one."""
    return {"object": "list", "data": [model(name, limit)]}


def model(name: str, limit: int | None) -> dict[str, Any]:
    """The object ``model``; ``max_model_len`` is where other servers tell the length of the context."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "stacx", "max_model_len": limit}
