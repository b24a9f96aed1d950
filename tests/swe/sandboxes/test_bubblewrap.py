"""What a bubblewrap sandbox does for those who behave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stacx_core.errors import ConfigError, DataError, SandboxError
from stacx_core.swe.sandboxes.bubblewrap_provider import BubblewrapProvider
from stacx_core.swe.sandboxes.seccomp import seccomp_program


def test_commands_share_files_and_nothing_else(sandbox):
    assert sandbox.run("pwd; cd /tmp; export X=1; echo kept > note", 30).output == "/app\n"
    assert sandbox.run('pwd; echo "$X"; cat /tmp/note; id -un; echo $HOME', 30).output == (
        "/app\n\nkept\nagent\n/home/agent\n"
    )


def test_exit_codes_and_both_outputs(sandbox):
    result = sandbox.run("echo out; echo err >&2; exit 3", 30)
    assert (result.output, result.exit_code, result.timed_out, result.truncated) == ("out\nerr\n", 3, False, 0)
    assert sandbox.run("kill -11 $$", 30).exit_code == 139
    assert sandbox.run("no-such-command", 30).exit_code == 127
    assert sandbox.run("cat", 30).output == ""


def test_variables(sandbox, provider, make_task):
    assert sandbox.run("echo $A", 30, {"A": "b c"}).output == "b c\n"
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nCOPY score.txt .\nENV A=1\nENV A=3 B=${A}2\n")
    opened = provider.open(task)
    assert opened.run("echo $A $B", 30).output == "3 12\n"
    opened.close()


def test_a_process_in_the_background_lives_on(sandbox):
    assert "begun" in sandbox.run("(while :; do echo tick; sleep 0.01; done) & echo begun", 30).output.splitlines()
    assert sandbox.run("jobs -p; ps -e -o args= | grep -c '[t]ick\\|[s]leep'", 30).exit_code == 0
    sandbox.end_processes()
    assert sandbox.run("ps -e -o comm= | grep -v python3", 30).output.split() == ["bash", "ps", "grep"]


def test_files(sandbox, tmp_path):
    data = bytes(range(256)) * 1000
    sandbox.write("new/folder/data", data)
    assert sandbox.read("/app/new/folder/data") == data
    sandbox.write("tool", b"#!/bin/sh\necho ran\n", executable=True)
    assert sandbox.run("./tool", 30).output == "ran\n"
    (tmp_path / "given" / "deep").mkdir(parents=True)
    (tmp_path / "given" / "deep" / "file").write_text("x")
    (tmp_path / "given" / "link").symlink_to("deep/file")
    sandbox.copy_in(tmp_path / "given", "/data")
    assert sandbox.run("cat /data/link; readlink /data/link", 30).output == "xdeep/file\n"


def test_files_that_cannot_be_read_or_written(sandbox):
    sandbox.run("mkfifo pipe; ln -s score.txt link; head -c 2000 /dev/zero > long", 30)
    for path in ("nowhere", "pipe", "link", "/tmp"):
        with pytest.raises(OSError, match=path):
            sandbox.read(path)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        sandbox.read("long", 1000)
    with pytest.raises(OSError, match="No space left"):
        sandbox.write("big", bytes(100 << 20))
    with pytest.raises(OSError, match="Read-only"):
        sandbox.write("/usr/x", b"")
    assert sandbox.run("echo alive", 30).output == "alive\n"


def test_a_working_folder_that_is_gone(sandbox):
    sandbox.run("rm -rf /app", 30)
    result = sandbox.run("pwd", 30)
    assert result.output.startswith("sandbox: [Errno 2] No such file or directory: '/app'; starting in /\n")


def test_an_environment_is_built_once(provider, make_task, tmp_path):
    dockerfile = """
# A comment
FROM python:3.12
ARG WHO=world
ENV GREETING="hello $WHO"
WORKDIR /srv/work
COPY --chmod=755 score.txt scores/
RUN echo "$GREETING" > made.txt && \\
    date +%N >> made.txt
RUN ["sh", "-c", "pwd >> made.txt"]
CMD ["sleep"]
"""
    first = provider.open(make_task("one", dockerfile=dockerfile))
    second = BubblewrapProvider(cache=tmp_path / "cache").open(make_task("two", dockerfile=dockerfile))
    outputs = [
        opened.run("cat made.txt; stat -c %a scores/score.txt; pwd; echo $WHO", 30).output for opened in (first, second)
    ]
    first.close()
    second.close()
    assert outputs[0] == outputs[1]
    greeting, _, where, mode, workdir, argument = outputs[0].splitlines()
    assert (greeting, where, mode, workdir, argument) == ("hello world", "/srv/work", "755", "/srv/work", "")
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_an_environment_that_was_kept_and_is_damaged(provider, make_task, tmp_path):
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nRUN echo made > file\n")
    provider.open(task).close()
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(SandboxError, match=f"if {kept} is damaged, delete it"):
        provider.open(task)
    kept.unlink()
    provider.open(task).close()


def test_a_place_for_environments_that_cannot_be_written(make_task, provider):
    with pytest.raises(SandboxError, match=r"cannot be kept in /proc/nowhere: .*\n  set XDG_CACHE_HOME"):
        BubblewrapProvider(cache=Path("/proc/nowhere")).open(make_task(dockerfile="FROM x\nRUN true\n"))


def test_a_build_that_fails(provider, make_task):
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nRUN echo reason && exit 4\n")
    with pytest.raises(SandboxError, match=r"RUN echo reason && exit 4 ended with exit code 4\n  reason"):
        provider.open(task)


def test_a_task_without_dockerfile(provider, make_task):
    task = make_task()
    (task.environment / "Dockerfile").unlink()
    (task.environment / "files").mkdir()
    (task.environment / "files" / "a").write_text("a")
    opened = provider.open(task)
    assert opened.run("pwd; ls -R", 30).output == "/app\n.:\nfiles\nscore.txt\n\n./files:\na\n"
    opened.close()


def test_limits_that_this_machine_never_holds(provider, make_task):
    with pytest.raises(DataError, match=r"memory_mb 9999999 and storage_mb 64 are more than this machine's"):
        provider.check(make_task(memory=9_999_999))


def test_folders_of_the_host_can_be_shown(tmp_path, provider, make_task):
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("x")
    for folder in (shown, *shown.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o555)
    opened = BubblewrapProvider(read_only=[shown]).open(make_task())
    result = opened.run(f"cat {shown}/file; echo y > {shown}/file", 30)
    opened.close()
    assert result.output.startswith("x")
    assert "Read-only" in result.output


def test_a_sandbox_that_is_gone_says_so(provider, make_task):
    opened = provider.open(make_task())
    opened.close()
    with pytest.raises(SandboxError, match=r"the sandbox of sum is closed"):
        opened.run("true", 30)
    opened.close()


def test_bubblewrap_that_is_not_installed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="install it"):
        BubblewrapProvider()


def test_the_filter_knows_two_machines():
    programs = [seccomp_program(machine) for machine in ("x86_64", "aarch64")]
    assert len(programs[0]) == len(programs[1])
    assert len(programs[0]) % 8 == 0
    assert programs[0] != programs[1]
    with pytest.raises(ConfigError, match="not of 'riscv64'"):
        seccomp_program("riscv64")
