"""Tool calls in text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.swe.gateway.tool_calls import ParsedText, ToolCall, parse_tool_calls

TOOLS = {"bash": {"command": "string", "seconds": "integer"}}
LS = ToolCall("bash", '{"command": "ls"}')
WRITTEN = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no call", ParsedText("no call")),
        (WRITTEN, ParsedText("", [LS])),
        (f"look\n{WRITTEN}\n{WRITTEN}", ParsedText("look", [LS, LS])),
        (f"<think>{WRITTEN}</think>no", ParsedText(f"<think>{WRITTEN}</think>no")),
        (f"why</think>so {WRITTEN}", ParsedText("why</think>so", [LS])),
        ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', ParsedText("", [LS])),
        ('<tool_call>{"name": "new", "parameters": {}}</tool_call>', ParsedText("", [ToolCall("new", "{}")])),
        ('<tool_call>{"name": "bash"}</tool_call>', ParsedText('<tool_call>{"name": "bash"}</tool_call>', [], 1)),
        (f"{WRITTEN}<tool_call>{{", ParsedText("<tool_call>{", [LS], 1)),
        (f"<tool_call>no {WRITTEN}", ParsedText("<tool_call>no", [LS], 1)),
        (f"<tool_call>no</tool_call> {WRITTEN}", ParsedText("<tool_call>no</tool_call>", [LS], 1)),
    ],
)
def test_marked_calls(text: str, expected: ParsedText) -> None:
    assert parse_tool_calls(text, TOOLS) == expected


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (
            "<parameter=command>\nls\n</parameter>\n<parameter=seconds>\n3\n</parameter>",
            {"command": "ls", "seconds": 3},
        ),
        ("<parameter=command>\n3\n</parameter>", {"command": "3"}),
        ("<parameter=command>a\n\n  b\n\n</parameter>", {"command": "a\n\n  b\n"}),
        ("<parameter=seconds>soon</parameter>", {"seconds": "soon"}),
        ("<parameter=other>[1]</parameter>", {"other": "[1]"}),
        ("", {}),
        ("ls", None),
        ("<parameter=command>ls", None),
    ],
)
def test_calls_with_a_tag_for_each_parameter(parameters: str, arguments: Any) -> None:
    text = f"<tool_call>\n<function=bash>\n{parameters}\n</function>\n</tool_call>"
    parsed = parse_tool_calls(text, TOOLS)
    assert [json.loads(call.arguments) for call in parsed.calls] == ([] if arguments is None else [arguments])
    assert parsed.malformed == (arguments is None)


@pytest.mark.parametrize("arguments", ["[]", "3", "null", '{"x": NaN}', '{"x": "\\ud800"}', '"no"', "[" * 100_000, "{"])
def test_arguments_that_are_no_object_of_json_are_malformed(arguments: str) -> None:
    text = f'<tool_call>{{"name": "bash", "arguments": {arguments}}}</tool_call>'
    assert parse_tool_calls(text, TOOLS) == ParsedText(text, [], 1)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "bash", "arguments": {"command": "ls"}}', 1),
        ('```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```\n', 1),
        ('[{"name": "bash", "arguments": {}}, {"name": "bash", "parameters": {}}]', 2),
        ('{"name": "unknown", "arguments": {}}', 0),
        ('[{"name": "bash", "arguments": {}}, 3]', 0),
        ('The answer is {"name": "bash", "arguments": {}}', 0),
        ('{"name": "bash"}', 0),
        ("[]", 0),
    ],
)
def test_bare_json_is_a_call_when_it_names_a_known_tool_and_nothing_else_is_there(text: str, calls: int) -> None:
    parsed = parse_tool_calls(text, TOOLS)
    assert (len(parsed.calls), parsed.malformed) == (calls, 0)
    assert parsed.content == ("" if calls else text)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('<>/tol_ca\n é"\\', max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text("ab \n", max_size=9), st.lists(st.dictionaries(st.text("ab", min_size=1), VALUES, max_size=3), max_size=3)
)
def test_what_is_written_is_read(content: str, arguments: list[dict[str, Any]]) -> None:
    blocks = [f"\n<tool_call>\n{json.dumps({'name': 'f', 'arguments': own})}\n</tool_call>" for own in arguments]
    parsed = parse_tool_calls(content + "".join(blocks), {"f": {}})
    if "</tool_call>" not in json.dumps(arguments):
        assert [json.loads(call.arguments) for call in parsed.calls] == arguments
        assert parsed.content.rstrip() == content.rstrip()
        assert parsed.malformed == 0


@given(st.text())
def test_any_text_is_read_without_an_error_and_nothing_of_it_is_lost_without_a_call(text: str) -> None:
    parsed = parse_tool_calls(text, TOOLS)
    assert parsed.calls or parsed.content == text
