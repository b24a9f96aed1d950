"""What an agent may say: thoughts, and exactly one fenced block of bash."""

from __future__ import annotations

import re

SUBMIT = "submit"
"""The block that ends the work."""
LONGEST_COMMAND = 100_000
"""Bytes; Linux takes no argument of 128 KiB."""
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)")


class MalformedAction(ValueError):
    """An action that is not exactly one block of bash; the message tells the agent what is wrong."""


def command_of(action: str) -> str:
    """The command of an action.

    A block opens with three or more backticks and ``bash`` on a line, and closes with a line of at least as many, so
    that a file with fences in it is written in a block of four. Blocks of other languages are prose, and so is
    everything up to the last ``</think>``.

    Args:
        action: What the agent said.

    Raises:
        MalformedAction: There is no such block, more than one, one without an end, or one that bash cannot be given.
    """
    blocks: list[str] = []
    fence, language, inside = "", "", list[str]()
    # Only these end lines: everything else can stand in a file that is written.
    for line in action.rpartition("</think>")[2].replace("\r\n", "\n").split("\n"):
        if not fence:
            if found := _FENCE.fullmatch(line):
                fence, language, inside = found[1], found[2].strip(), []
        elif _closes(line, fence):
            blocks += ["\n".join(inside)] * (language == "bash")
            fence = ""
        else:
            inside.append(line)
    if fence and language == "bash":
        raise MalformedAction("your bash block has no end; close it with a line of ```")
    if len(blocks) != 1:
        raise MalformedAction(f"there are {len(blocks) or 'no'} bash blocks in your answer; write exactly one")
    return _runnable(blocks[0])


def bash_block(command: str) -> str:
    """A command as the block of an action, its fence longer than any in the command."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return f"{fence}bash\n{command}\n{fence}"


def _closes(line: str, fence: str) -> bool:
    found = _FENCE.fullmatch(line)
    return found is not None and len(found[1]) >= len(fence) and not found[2].strip()


def _runnable(command: str) -> str:
    if not command.strip():
        raise MalformedAction("your bash block is empty")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise MalformedAction("your command has half a surrogate pair in it, which is no character") from None
    if size > LONGEST_COMMAND:
        raise MalformedAction(f"your command has {size} bytes; it may have {LONGEST_COMMAND}. Write files in parts")
    if "\0" in command:
        raise MalformedAction("your command has a zero byte in it")
    return command
