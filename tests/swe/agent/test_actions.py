"""Which answers are a command, and which are malformed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.swe.agent.actions import LONGEST_COMMAND, MalformedAction, bash_block, command_of


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look.\n\n```bash\ncd a\nls\n```\nThen more.", "cd a\nls"),
        ("````bash\ncat > a.md << 'E'\n```\nx\n```\nE\n````", "cat > a.md << 'E'\n```\nx\n```\nE"),
        ("As in\n```python\nx = 1\n```\nI do\n```bash\nls\n```", "ls"),
        ("<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", "ls"),
        ("<think>```bash\n</think>\n```bash\nls\n```", "ls"),
        ("  ```bash\nls\n  ```", "ls"),
        ("```bash\n\n  ls \n```", "\n  ls "),
        ("I look.\r\n```bash\r\ncd a\r\nls\r\n```\r\n", "cd a\nls"),
        ("```bash\necho 'a\x0cb\u2028c\x85d\x1ce' > f\n```", "echo 'a\x0cb\u2028c\x85d\x1ce' > f"),
    ],
)
def test_the_one_block_is_the_command(action: str, command: str) -> None:
    assert command_of(action) == command


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ("", "no bash blocks"),
        ("ls", "no bash blocks"),
        ("```\nls\n```", "no bash blocks"),
        ("```sh\nls\n```", "no bash blocks"),
        ("`bash ls`", "no bash blocks"),
        ("```python\n```bash\nls\n```", "no bash blocks"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 bash blocks"),
        ("```bash\nls", "has no end"),
        ("````bash\nls\n```", "has no end"),
        ("```bash\nls\n```\n```bash\npwd", "has no end"),
        ("```bash\n\n```", "is empty"),
        ("```bash\n```", "is empty"),
        ("```bash\nls \0\n```", "a zero byte"),
        ("```bash\nls \ud800\n```", "half a surrogate pair"),
        (f"```bash\n{'é' * (LONGEST_COMMAND // 2)}x\n```", "has 100001 bytes"),
    ],
)
def test_anything_else_is_malformed(action: str, problem: str) -> None:
    with pytest.raises(MalformedAction, match=problem):
        command_of(action)


LETTERS = "ab `$\t\x0b\x0c\x85\u2028"
LINES = st.lists(st.text(st.sampled_from(LETTERS), max_size=6) | st.just("```") | st.just("```bash"), max_size=6)


@given(LINES.map("\n".join).filter(str.strip), LINES.map("\n".join))
def test_whatever_is_written_as_a_block_is_read_as_it_was(command: str, thought: str) -> None:
    assert command_of(bash_block(command)) == command
    assert command_of(f"<think>{thought}</think>\n{bash_block(command)}") == command


@given(st.text())
def test_every_answer_is_a_command_or_malformed(action: str) -> None:
    with contextlib.suppress(MalformedAction):
        assert command_of(action).strip()
