"""Sandboxes of container engines, as far as they can be tried without one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from stacx_core.errors import ConfigError
from stacx_core.swe.sandboxes import sandbox_provider
from stacx_core.swe.sandboxes.docker import run_arguments
from stacx_core.swe.sandboxes.shell_sandbox import ShellSandbox


class HostSandbox(ShellSandbox):
    """Runs the scripts here, in a folder of the test."""

    def execute(self, script: str, seconds: float, data: bytes = b"") -> tuple[int, bytes]:
        done = subprocess.run(["bash", "-c", script], input=data, stdout=subprocess.PIPE, timeout=seconds + 30)
        return done.returncode, done.stdout

    def end_processes(self) -> None:
        os.kill(0, signal.SIGCONT)

    def close(self) -> None:
        self.empty(self.workdir)


@pytest.fixture
def host(make_task, tmp_path) -> HostSandbox:
    """A sandbox that is none, for the scripts."""
    (tmp_path / "work").mkdir()
    return HostSandbox(make_task(), str(tmp_path / "work"))


def test_commands(host):
    result = host.run("pwd; echo $A; echo err >&2; exit 3", 30, {"A": "b c"})
    assert (result.output, result.exit_code, result.timed_out) == (f"{host.workdir}\nb c\nerr\n", 3, False)
    late = host.run("echo begun; sleep 60", 0.3)
    assert (late.output, late.exit_code, late.timed_out) == ("begun\n", 124, True)
    long = host.run("seq 100000", 20)
    assert long.output.startswith("1\n2\n")
    assert long.output.endswith("99999\n100000\n")
    assert long.truncated == 588_895 - 32_000


def test_files(host, tmp_path):
    data = bytes(range(256)) * 10
    host.write("a b/data", data)
    assert host.read("a b/data") == data
    host.write("tool", b"#!/bin/sh\necho ran\n", executable=True)
    assert host.run("./tool", 30).output == "ran\n"
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file").write_text("x")
    host.copy_in(tmp_path / "given", "copied")
    assert host.read("copied/file") == b"x"
    host.run("ln -s tool link", 30)
    for path, message in (("nowhere", "Errno 2"), ("link", "a link"), ("a b", "no regular file")):
        with pytest.raises(OSError, match=message):
            host.read(path)
    with pytest.raises(OSError, match="too long"):
        host.read("a b/data", 100)


def test_emptying_follows_no_links(host, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    place = tmp_path / "logs"
    place.symlink_to(tmp_path / "kept")
    host.empty(str(place))
    assert place.is_dir()
    assert not place.is_symlink()
    assert (tmp_path / "kept" / "file").is_file()


def test_the_command_line_of_docker(make_task):
    arguments = run_arguments(make_task(), "python:3.12", "name")
    assert arguments[:8] == ["docker", "run", "--detach", "--name", "name", "--label", "stacx-sandbox", "--network"]
    text = " ".join(arguments)
    for part in ("--network none", "--cpus 1", "--memory 256m --memory-swap 256m", "--pids-limit 256",
                 "--entrypoint bash python:3.12 -c end=$((SECONDS + 3650));"):  # fmt: skip
        assert part in text


def test_engines_that_are_not_there(monkeypatch):
    with pytest.raises(ConfigError, match=r"needs the package swe-rex: pip install swe-rex|no 'nothing'"):
        sandbox_provider("swerex:nothing")
    with pytest.raises(ConfigError, match=r"no sandbox is called 'buble' \(did you mean 'bubblewrap'\?\)"):
        sandbox_provider("buble")
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("true") or "/bin/true"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ConfigError, match=r"needs a running engine|which is not installed"):
        sandbox_provider("docker")
