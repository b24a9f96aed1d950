"""Tool calls in the text that a model wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from stacx_core.swe.gateway.messages import is_text

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_FENCE = "```"
_THOUGHT_END = "</think>"

Tools = Mapping[str, Mapping[str, str]]
"""Name of each known tool -> the JSON types of its parameters, as far as they are told."""


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


def parse_tool_calls(text: str, tools: Tools) -> ParsedText:
    """Find the calls behind the thoughts of an answer.

    They stand between ``<tool_call>`` and ``</tool_call>``: as ``{"name": ..., "arguments": {...}}``, which Hermes and
    Qwen3 write, or as ``<function=NAME><parameter=NAME>...</parameter></function>``, which Qwen3-Coder writes. An
    answer without that mark is a call, or a list of calls, when nothing but such JSON is in it, fenced or not, and it
    names known tools.

    Args:
        text: Of the whole answer.
        tools: That are known.
    """
    thoughts, end, said = text.rpartition(_THOUGHT_END)
    parsed = _marked(said, tools) if _OPEN in said else _bare(said, tools)
    return ParsedText(thoughts + end + parsed.content, parsed.calls, parsed.malformed)


def _marked(said: str, tools: Tools) -> ParsedText:
    content, *parts = said.split(_OPEN)
    calls: list[ToolCall] = []
    for part in parts:
        block, closed, behind = part.partition(_CLOSE)
        call = (_call(_json(block)) or _spelled_out(block.strip(), tools)) if closed else None
        calls += [call] if call else []
        content = content.rstrip() + behind if call else content + _OPEN + part
    return ParsedText(content, calls, len(parts) - len(calls))


def _bare(said: str, tools: Tools) -> ParsedText:
    text = said.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        language, _, text = text.removeprefix(_FENCE).removesuffix(_FENCE).partition("\n")
        text = text if language.strip() in ("", "json") else ""
    read = _json(text)
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
    return _checked(read["name"], arguments)


def _spelled_out(block: str, tools: Tools) -> ToolCall | None:
    """The call with a tag for each parameter; a value is text unless its type is another and it is JSON."""
    name, _, inner = block.removeprefix(_FUNCTION).partition(">")
    before, *parts = inner.removesuffix(_FUNCTION_END).split(_PARAMETER)
    if not block.startswith(_FUNCTION) or not inner.endswith(_FUNCTION_END) or before.strip():
        return None
    arguments: dict[str, Any] = {}
    for part in parts:
        parameter, _, rest = part.partition(">")
        value, closed, behind = rest.partition(_PARAMETER_END)
        if not closed or behind.strip():
            return None
        value = value.removeprefix("\n").removesuffix("\n")
        read = None if tools.get(name, {}).get(parameter, "string") == "string" else _json(value)
        arguments[parameter] = value if read is None else read
    return _checked(name, arguments)


def _checked(name: str, arguments: dict[str, Any]) -> ToolCall | None:
    call = ToolCall(name, json.dumps(arguments, ensure_ascii=False))
    return call if is_text(call.name + call.arguments) else None


def _json(text: str) -> Any:
    """The value, or None for what is no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
