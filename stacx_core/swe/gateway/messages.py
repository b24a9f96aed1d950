"""Chat messages of a request: checked, brought into one form, and compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stacx_core.data.sample import Message
from stacx_core.errors import nearest
from stacx_core.swe.gateway.errors import bad_request

ROLES = ("system", "developer", "user", "assistant", "tool")

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""What makes two messages the same: role, text, and the names and arguments of the tool calls."""


def read_messages(given: Any) -> list[Message]:
    """The messages as a chat template takes them.

    Text parts are joined, ``developer`` becomes ``system``, the arguments of tool calls become objects where they are
    such, and fields that no template shows are left out.

    Raises:
        ApiError: 400, naming the message and its field.
    """
    if not isinstance(given, list) or not given:
        raise bad_request("messages must be a list of at least one message", "messages")
    messages: list[Message] = []
    calls: set[str] = set()
    for number, item in enumerate(given):
        message = _message(item, f"messages[{number}]")
        calls.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in calls:
            param = f"messages[{number}].tool_call_id"
            raise bad_request(f"{param} {message['tool_call_id']!r} answers no tool call of the messages before", param)
        messages.append(message)
    return messages


def message_key(message: Message) -> Key:
    """Equal for messages that say the same; ids of tool calls and the space around an assistant's text do not count."""
    text = message["content"].strip() if message["role"] == "assistant" else message["content"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = tuple((function["name"], json.dumps(function["arguments"], sort_keys=True)) for function in functions)
    return message["role"], text, calls


def newest_text(messages: Sequence[Message]) -> str:
    """What was said since the assistant spoke last, system messages left out."""
    said: list[str] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            break
        if message["role"] != "system":
            said.append(message["content"])
    return "\n".join(reversed(said))


def system_text(messages: Sequence[Message]) -> str:
    """What the system messages say."""
    return "\n".join(message["content"] for message in messages if message["role"] == "system")


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise bad_request(f"{where} must be an object, not {type(item).__name__}", where)
    role = item.get("role")
    if role not in ROLES:
        hint = nearest(role, ROLES) if isinstance(role, str) else ""
        raise bad_request(f"{where}.role is {role!r}{hint}; roles are {', '.join(ROLES)}", f"{where}.role")
    message: Message = {"role": "system" if role == "developer" else role}
    calls = item.get("tool_calls") if role == "assistant" else None
    message["content"] = _text(item.get("content"), f"{where}.content", optional=role == "assistant")
    if calls:
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if role == "tool":
        message["tool_call_id"] = _string(item.get("tool_call_id"), f"{where}.tool_call_id")
    return message


def _text(content: Any, where: str, *, optional: bool) -> str:
    """A string, or text parts, joined; nothing at all is the empty text where it is optional."""
    if content is None and optional:
        return ""
    if isinstance(content, list):
        return "".join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))
    return _string(content, where)


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise bad_request(f"{where} is {kind!r}; only parts of type 'text' are taken", where)
    return _string(part.get("text"), f"{where}.text")


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise bad_request(f"{where} must be a list", where)
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise bad_request(f"{where} must be an object with an 'id' and a 'function'", where)
    name = _string(function.get("name"), f"{where}.function.name")
    arguments = _string(function.get("arguments"), f"{where}.function.arguments")
    identity = _string(call.get("id"), f"{where}.id")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": as_object(arguments)}}


def as_object(arguments: str) -> dict[str, Any] | str:
    """The object that the text is as JSON, or the text where it is none."""
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return read if isinstance(read, dict) else arguments


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{where} must be a string, not {type(value).__name__}", where)
    if not is_text(value):
        raise bad_request(f"{where} holds half a surrogate pair, which is no text", where)
    return value


def is_text(value: str) -> bool:
    """Whether the string has bytes: half a surrogate pair has none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
