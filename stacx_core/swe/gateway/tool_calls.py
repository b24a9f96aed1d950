"""Tool calls in the text that a model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NoReturn

from stacx_core.swe.gateway.messages import is_text

_OPEN = "<tool_call>"
_BLOCK = re.compile(r"\s*<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class ToolCall:
    """A call: the tool's name, and its arguments as the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedText:
    """What is in the text of an answer.

    Args:
        content: The text without its calls.
        calls: In order.
        malformed: Calls that could not be read; they stay in the content.
    """

    content: str
    calls: list[ToolCall] = field(default_factory=list)
    malformed: int = 0


def parse_tool_calls(text: str, tools: Collection[str]) -> ParsedText:
    """Find the calls behind the thoughts of an answer.

    They are ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` as Hermes and the Qwen family write them. An
    answer without that mark is a call, or a list of calls, when nothing but such JSON is in it, fenced or not, and it
    names known tools.

    Args:
        text: Of the whole answer.
        tools: Names that are known.
    """
    thoughts, end, said = text.rpartition(_THOUGHT_END)
    parsed = _marked(said) if _OPEN in said else _bare(said, tools)
    return ParsedText(thoughts + end + parsed.content, parsed.calls, parsed.malformed)


def _marked(said: str) -> ParsedText:
    calls: list[ToolCall] = []

    def taken(match: re.Match[str]) -> str:
        call = _call(_json(match[1]))
        calls.extend([call] if call else [])
        return "" if call else match[0]

    content = _BLOCK.sub(taken, said)
    return ParsedText(content, calls, content.count(_OPEN))


def _bare(said: str, tools: Collection[str]) -> ParsedText:
    fenced = _FENCE.fullmatch(said.strip())
    read = _json(fenced[1] if fenced else said)
    calls = [_call(item) for item in (read if isinstance(read, list) else [read])]
    known = [call for call in calls if call is not None and call.name in tools]
    return ParsedText("", known) if calls and len(known) == len(calls) else ParsedText(said)


def _call(read: Any) -> ToolCall | None:
    if not isinstance(read, dict) or not isinstance(read.get("name"), str):
        return None
    arguments = read.get("arguments", read.get("parameters"))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        return None
    call = ToolCall(read["name"], json.dumps(arguments, ensure_ascii=False))
    return call if is_text(call.name + call.arguments) else None


def _json(text: str) -> Any:
    """The value, or None for what is no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
