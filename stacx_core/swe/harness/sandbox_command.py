"""Run a command in the sandbox of an episode, by the words of docker: ``sandbox exec [-w FOLDER] [-e NAME=VALUE] ID
COMMAND...``. ``run`` prints an ID, and ``stop`` and ``rm`` do nothing, since the sandbox is there before and after.

A program of its own, which imports nothing but the standard library: ``python -I sandbox_command.py SOCKET WORDS``.
"""

from __future__ import annotations

import json
import socket
import sys

CONTAINER = "sandbox"
"""The ID of the one container there is."""
NO_SANDBOX, USAGE = 125, 2
FLAGS = ("-i", "-t", "-it", "--interactive", "--tty")


def main(path: str, words: list[str]) -> int:
    """Returns the exit code: the command's, 125 when there is no sandbox any more, or 2."""
    if words[:1] == ["run"]:
        print(CONTAINER)
        return 0
    if words[:1] in (["stop"], ["rm"], ["kill"]):
        return 0
    try:
        request = read_words(words)
    except ValueError as error:
        print(f"{error}; use exec [-w FOLDER] [-e NAME=VALUE] ID COMMAND...", file=sys.stderr)
        return USAGE
    try:
        answer = ask(path, request)
    except (OSError, ValueError) as error:
        answer = {"error": str(error)}
    if "error" in answer:
        print(f"the sandbox does not answer: {answer['error']}", file=sys.stderr)
        return NO_SANDBOX
    sys.stdout.buffer.write(answer["output"].encode(errors="replace"))
    return int(answer["exit_code"])


def read_words(words: list[str]) -> dict[str, object]:
    """Folder, variables and command.

    Raises:
        ValueError: They say something else.
    """
    if words[:1] != ["exec"]:
        raise ValueError(f"unknown command {' '.join(words[:1])!r}")
    rest, cwd, env = words[1:], "", dict[str, str]()
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in FLAGS:
            continue
        name, equals, value = option.partition("=")
        if not equals:
            value = rest.pop(0) if rest else ""
        if name in ("-w", "--workdir"):
            cwd = value
        elif name in ("-e", "--env"):
            variable, _, content = value.partition("=")
            env[variable] = content
        else:
            raise ValueError(f"unknown option {option!r}")
    if len(rest) < 2:
        raise ValueError("the command is missing")
    return {"cwd": cwd, "env": env, "command": rest[1:]}


def ask(path: str, request: dict[str, object]) -> dict[str, str]:
    """Send a line of JSON to the socket; returns that of the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer: dict[str, str] = json.loads(answers.readline())
            return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
