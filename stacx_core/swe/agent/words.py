"""What the agent is shown: who it is, its task, how to act, and what its commands did."""

from __future__ import annotations

from stacx_core.swe.agent.actions import LONGEST_COMMAND, SUBMIT, bash_block
from stacx_core.swe.sandboxes import CommandResult
from stacx_core.swe.tasks import Task

TASK_LINE = "Task: "
"""Begins the line that names the task."""

SYSTEM = (
    "You are a software engineer. You work in a Linux sandbox, by bash alone: every answer of yours is one command, "
    "and you are shown what it printed."
)

_HOW = f"""\
## How to act

Say in a sentence or two what you are about to do, then give exactly one command in a block like this:

{bash_block("ls -la")}

- Every command runs in a new shell in {{workdir}}; files stay, `cd` and variables do not.
- There is no network, and nobody answers questions of a program.
- A command may take {{seconds:g}} seconds, all of them together {{total:g}}.
- Long output is shown without its middle. A block may have {LONGEST_COMMAND} bytes.
- To write a file that has ``` in it, open and close the block with more backticks.

Change the files so that the task is done. When you are sure, end your work with this block alone:

{bash_block(SUBMIT)}"""


def first_words(task: Task, workdir: str, command_seconds: float) -> str:
    """The task and how to act.

    Args:
        task: What is to be done.
        workdir: Folder that commands start in.
        command_seconds: Longest command.
    """
    total = task.limits.agent_timeout
    how = _HOW.format(workdir=workdir, seconds=min(command_seconds, total), total=total)
    return f"{TASK_LINE}{task.name}\n\n{task.instruction}\n\n{how}"


def result_words(result: CommandResult, seconds: float, limit: int) -> str:
    """What a command did.

    Args:
        result: Of the sandbox.
        seconds: What the command was given.
        limit: Characters of its output that are shown.
    """
    ended = {
        "": "",
        "time": f" (ended after {seconds:g} seconds, with everything it had started)",
    }.get(result.limit, f" (ended for its use of {result.limit})")
    return f"exit code: {result.exit_code}{ended}\n<output>\n{bounded(result.output, limit)}\n</output>"


def refusal_words(problem: str, left: int) -> str:
    """That an action was malformed, and how many more such in a row end the episode."""
    return (
        f"Nothing was run: {problem}.\n\nGive one command in a block like this, or `{SUBMIT}` to end your work:\n\n"
        f"{bash_block('ls -la')}\n\n{left} more such answer{'s' * (left != 1)} in a row will end the episode."
    )


def verified_words(reward: float, output: str, limit: int) -> str:
    """What the tests said, which the agent is not shown."""
    return f"reward: {reward:g}\n<tests>\n{bounded(output, limit)}\n</tests>"


def bounded(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters and a line that counts those left out of its middle."""
    text = text.rstrip("\n")
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    tail = text[len(text) - limit // 2 :]
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{tail}"
