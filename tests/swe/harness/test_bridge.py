"""The stand-in for docker: its words, and what they do in a sandbox."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stacx_core.swe.harness.bridge import Bridge
from stacx_core.swe.harness.sandbox_command import read_words

Docker = Callable[..., tuple[int, str, str]]


@pytest.fixture
def docker(sandbox: Any, tmp_path: Path) -> Iterator[Docker]:
    """Run the program; returns exit code, output and errors."""
    with Bridge(sandbox, tmp_path, seconds=2, until=time.monotonic() + 600) as bridge:

        def run(*words: str) -> tuple[int, str, str]:
            done = subprocess.run([bridge.program, *words], capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout, done.stderr

        yield run


def test_commands_run_in_the_sandbox(docker: Docker) -> None:
    assert docker("run", "-d", "--name", "x", "-w", "/app", "image", "sleep", "2h") == (0, "sandbox\n", "")
    assert docker("exec", "sandbox", "pwd") == (0, "/app\n", "")
    assert docker("exec", "-it", "-w", "/tmp", "-e", "A=it's b=c", "sandbox", "bash", "-lc", 'pwd; echo "$A" é') == (
        0,
        "/tmp\nit's b=c é\n",
        "",
    )
    assert docker("exec", "sandbox", "bash", "-c", "echo kept > file; exit 3") == (3, "", "")
    assert docker("exec", "sandbox", "cat", "file") == (0, "kept\n", "")
    assert docker("stop", "sandbox") == docker("rm", "-f", "sandbox") == (0, "", "")
    assert docker("exec", "sandbox", "cat", "file") == (0, "kept\n", "")


def test_a_command_is_ended_at_its_limit(docker: Docker) -> None:
    code, output, _ = docker("exec", "sandbox", "bash", "-c", "echo begun; sleep 100")
    assert (code, output) == (137, "begun\n\n[ended for its use of time]\n")
    assert docker("exec", "sandbox", "echo", "next") == (0, "next\n", "")


def test_a_client_that_goes_away_or_talks_nonsense_is_nobodys_trouble(docker: Docker, tmp_path: Path) -> None:

    for said in (b"", b"nonsense\n", b"{}\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "sandbox.sock"))
            client.sendall(said)
    assert docker("exec", "sandbox", "echo", "next") == (0, "next\n", "")


def test_a_sandbox_that_is_closed_is_told(docker: Docker, sandbox: Any) -> None:
    sandbox.close()
    code, output, told = docker("exec", "sandbox", "pwd")
    assert (code, output) == (125, "")
    assert "the sandbox does not answer: the sandbox of sum is closed" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cp", "a", "b"], "unknown command 'cp'"),
        ([], "unknown command ''"),
        (["exec", "--privileged=true", "x", "ls"], "unknown option '--privileged=true'"),
        (["exec", "-w", "/app", "x"], "the command is missing"),
        (["exec", "-w"], "the command is missing"),
    ],
)
def test_other_words_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_words(words)


def test_options_are_read_up_to_the_id() -> None:
    assert read_words(["exec", "--workdir=/a", "--env", "B=1=2", "-i", "id", "ls", "-l"]) == {
        "cwd": "/a",
        "env": {"B": "1=2"},
        "command": ["ls", "-l"],
    }
