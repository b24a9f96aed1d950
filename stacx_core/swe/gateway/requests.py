"""The body of a request for a chat completion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stacx_core.data.sample import Message
from stacx_core.errors import nearest
from stacx_core.swe.gateway.errors import bad_request, unknown_model
from stacx_core.swe.gateway.messages import read_messages

READ = (
    *("model", "messages", "tools", "tool_choice", "temperature", "top_p", "max_tokens", "max_completion_tokens"),
    *("seed", "stop", "stream", "stream_options"),
)
IGNORED = ("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")
"""Fields that do not bear on the answer."""
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "parallel_tool_calls": True,
}
"""Fields that are taken with this value only: with any other they would change the answer in a way not offered."""


@dataclass(frozen=True)
class ChatRequest:
    """What a client asks for.

    Args:
        messages: In the form of :func:`stacx_core.swe.gateway.messages.read_messages`.
        tools: As given, shown to the model.
        calls_tools: Whether tool calls are looked for in the answer.
        temperature: None where the client leaves it open, as with the fields that follow.
        top_p: Nucleus mass.
        max_tokens: Most tokens of the answer.
        seed: Of the sampling.
        stop: Texts before which the answer ends.
        stream: Whether it is sent in pieces.
        include_usage: Whether the last piece counts the tokens.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    calls_tools: bool
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool

    @property
    def tool_types(self) -> dict[str, dict[str, str]]:
        """Name of each tool -> the JSON types of its parameters, as far as they are told."""
        return {tool["function"]["name"]: _types(tool["function"].get("parameters")) for tool in self.tools}


def read_request(body: Any, model: str) -> ChatRequest:
    """Check the parsed body of a request.

    Args:
        body: From JSON.
        model: The name that is served.

    Raises:
        ApiError: 404 for another model; 400, naming the field, for whatever is malformed or not offered.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, not {type(body).__name__}")
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("model") != model:
        raise unknown_model(given.get("model"), model)
    _check_fields(given)
    tools = _tools(given.get("tools", []))
    stream, include_usage = read_stream(given)
    return ChatRequest(
        messages=read_messages(given.get("messages")),
        tools=tools,
        calls_tools=_choice(given.get("tool_choice", "auto")) and bool(tools),
        temperature=_number(given, "temperature", 0, 2),
        top_p=_number(given, "top_p", 0, 1, above=True),
        max_tokens=read_max_tokens(given),
        seed=_integer(given, "seed", -(2**63)),
        stop=_stop(given.get("stop", [])),
        stream=stream,
        include_usage=include_usage,
    )


def _check_fields(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name in NEUTRAL and value != NEUTRAL[name]:
            told = f"{name} is not offered here: leave it out, or at {NEUTRAL[name]!r}"
            raise bad_request(told, name, "unsupported_parameter")
        if name not in (*READ, *IGNORED, *NEUTRAL):
            hint = nearest(name, (*READ, *IGNORED, *NEUTRAL))
            raise bad_request(f"there is no field {name!r}{hint}", name, "unknown_parameter")


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise bad_request(f"{where} must be an object of type 'function'", where)
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_request(f"{where}.function must be an object with a 'name'", f"{where}.function")
    return tools


def _types(schema: Any) -> dict[str, str]:
    """Of a JSON schema's properties; a schema is the client's, and may be anything."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    given = properties.items() if isinstance(properties, dict) else ()
    types = {name: own.get("type") for name, own in given if isinstance(own, dict)}
    return {name: kind for name, kind in types.items() if isinstance(kind, str)}


def _choice(choice: Any) -> bool:
    """Whether the model may call tools."""
    if choice not in ("auto", "none"):
        told = f"tool_choice is {choice!r}; only 'auto' and 'none' are offered"
        raise bad_request(told, "tool_choice", "unsupported_parameter")
    return bool(choice == "auto")


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false", name)
    return value


def _number(given: dict[str, Any], name: str, low: float, high: float, *, above: bool = False) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (above and value == low):
        raise bad_request(
            f"{name} is {value!r}; it must be a number {'above' if above else 'from'} {low} to {high}", name
        )
    return float(value)


def _integer(given: dict[str, Any], name: str, low: int) -> int | None:
    value = given.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63):
        raise bad_request(f"{name} is {value!r}; it must be an integer from {low} up", name)
    return value


def read_max_tokens(given: dict[str, Any]) -> int | None:
    """Most tokens of the answer, under the newer or the older name of the field, if the client says so.

    Raises:
        ApiError: 400, when it is no number above 0.
    """
    newer, older = _integer(given, "max_completion_tokens", 1), _integer(given, "max_tokens", 1)
    return older if newer is None else newer


def _stop(stop: Any) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or len(texts) > 4 or not all(isinstance(text, str) and text for text in texts):
        raise bad_request("stop must be a text or up to four of them, none empty", "stop")
    return tuple(texts)


def read_stream(given: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the answer is sent in pieces, and whether the last one counts the tokens.

    Raises:
        ApiError: 400, when a field is malformed.
    """
    stream, options = _flag(given, "stream"), given.get("stream_options", {})
    if "stream_options" in given and not stream:
        raise bad_request("stream_options are for requests with 'stream': true", "stream_options")
    if not isinstance(options, dict) or set(options) - {"include_usage"}:
        raise bad_request("stream_options must be an object with 'include_usage' or nothing", "stream_options")
    return stream, _flag(options, "include_usage")
