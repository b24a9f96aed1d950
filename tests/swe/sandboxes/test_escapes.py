"""What an agent must not be able to do. Each attempt fails, and the next episode finds nothing of it."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stacx_core.errors import VerificationError
from stacx_core.swe.sandboxes.bubblewrap import BubblewrapSandbox
from stacx_core.swe.sandboxes.bubblewrap_provider import MAX_PROCESSES, BubblewrapProvider
from stacx_core.swe.verifying import verify

MIB = 1 << 20
SCORE = "mkdir -p /logs/verifier; cat /app/score.txt > /logs/verifier/reward.txt"


@pytest.fixture(autouse=True)
def next_episode(sandbox: BubblewrapSandbox, provider: BubblewrapProvider, make_task) -> Iterator[None]:
    """After each attempt another episode, beside the first one, works as if nothing had been."""
    yield
    following = provider.open(make_task())
    try:
        result = following.run("cat score.txt && head -c 30000000 /dev/zero > big && wc -c < big && ls /tmp", 60)
        assert (result.output, result.exit_code) == ("0\n30000000\n", 0)
        following.run("echo 1 > score.txt", 30)
        assert verify(following, make_task()).reward == 1.0
    finally:
        following.close()


def python(sandbox: BubblewrapSandbox, code: str, timeout: float = 20):
    """Run a Python program in a sandbox."""
    sandbox.write("/tmp/attempt.py", code.encode())
    return sandbox.run("python3 /tmp/attempt.py", timeout)


def test_no_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = python(
            sandbox,
            "import socket\n"
            f"for place in (('127.0.0.1', {port}), ('192.0.2.1', 80)):\n"
            "    try:\n        socket.create_connection(place, 2)\n        print('through')\n"
            "    except OSError as error:\n        print('refused')\n"
            "print([name for _, name in socket.if_nameindex()])\n",
        )
    assert result.output == "refused\nrefused\n['lo']\n"


def test_an_abstract_socket_of_the_host_is_not_there(sandbox):
    name = f"\0stacx-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        result = python(sandbox, f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})\n")
    assert "ConnectionRefusedError" in result.output


@pytest.mark.parametrize(
    "place",
    ["/usr/x", "/bin/bash", "/proc/sys/kernel/hostname", "/dev/x", "/etc/alternatives/x", "/etc/ld.so.preload"],
)
def test_nothing_of_the_host_can_be_written(sandbox, place):
    result = sandbox.run(f"echo x > {place}", 30)
    assert result.exit_code != 0
    assert "Read-only file system" in result.output or "Permission denied" in result.output


@pytest.mark.parametrize(
    "folder", ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/tests", "/logs"]
)
def test_nothing_that_runs_the_tests_can_be_taken_away(sandbox, folder):
    result = sandbox.run(f"if [ -e {folder} ]; then mv {folder} /x; rm -f {folder}; fi; ls -d /x", 30)
    assert "cannot access '/x'" in result.output


def test_python_and_bash_take_nothing_from_the_agent(sandbox, make_task):
    result = sandbox.run(
        "forged='echo 1 > /logs/verifier/reward.txt'\n"
        "v=$(python3 -c 'import sys; print(\"python%d.%d\" % sys.version_info[:2])')\n"
        'put() { mkdir -p $(dirname $1); printf "$2" > $1; chmod 755 $1; }\n'
        "for folder in /etc/$v ~/.local/lib/$v/site-packages; do\n"
        "    put $folder/sitecustomize.py \"import os; os.system('$forged'); os._exit(0)\"\ndone\n"
        'for folder in /bin /usr/local/bin; do put $folder/bash "#!/usr/bin/dash\\n$forged"; done\n'
        'for file in /etc/profile /etc/bash.bashrc ~/.bashrc; do put $file "$forged; exit"; done\n',
        30,
    )
    assert result.output.count("Read-only file system") >= 5
    score = "mkdir -p /logs/verifier; cd /tests; python3 -c 'print(0)' > /logs/verifier/reward.txt"
    assert verify(sandbox, make_task(test=score)).reward == 0.0


def test_tests_and_solution_are_not_there(sandbox):
    result = sandbox.run("find / -xdev -name test.sh -o -xdev -name solve.sh; ls -A /tests /logs; ls /solution", 60)
    assert "test.sh" not in result.output.replace("/tests:", "")
    assert "solve.sh" not in result.output
    assert result.output.startswith("/logs:\n\n/tests:\n")


def test_files_and_variables_of_the_host_are_not_there(tmp_path, monkeypatch, provider, make_task):
    monkeypatch.setenv("STACX_TEST_SECRET", "hunter2")
    (tmp_path / "key").write_text("hunter2")
    opened = provider.open(make_task())
    try:
        result = opened.run(f"cat {tmp_path}/key; ls -A /root /home; env; cat /proc/*/environ /etc/shadow", 60)
    finally:
        opened.close()
    assert "hunter2" not in result.output
    assert "/etc/shadow: No such file" in result.output
    assert "/root': No such file" in result.output


def test_a_fork_bomb_stays_small(sandbox):
    result = python(
        sandbox,
        "import os, time\nfor made in range(10000):\n    try:\n        process = os.fork()\n"
        "    except BlockingIOError:\n        break\n    if process == 0:\n        time.sleep(60)\n"
        "print(made, flush=True)\nos._exit(0)\n",
        20,
    )
    assert 100 < int(result.output) < MAX_PROCESSES
    sandbox.run("bomb() { bomb | bomb & }; bomb", 3)
    sandbox.end_processes()
    assert sandbox.run("ls -d /proc/[0-9]*", 30).output.split()[0] == "/proc/1"
    assert len(sandbox.run("echo /proc/[0-9]*", 30).output.split()) == 2


def test_the_disk_cannot_be_filled(sandbox):
    result = sandbox.run(
        "for place in /app /tmp /home/agent /dev/shm /tests /logs / /run; do "
        "head -c 300000000 /dev/zero > $place/filler; done; "
        "du -cbx /*/filler /filler /home/*/filler /dev/shm | tail -1",
        60,
    )
    assert "No space left on device" in result.output
    written = int(result.output.strip().splitlines()[-1].split()[0])
    assert written < (64 + 64 + 16 + 17) * MIB


def test_the_disk_cannot_be_filled_with_empty_files(sandbox):
    result = python(sandbox, "for number in range(10**7):\n    open(f'/tmp/{number}', 'w').close()\n", 60)
    assert (result.exit_code, result.limit) == (137, "files")


def test_what_the_agent_fills_does_not_keep_the_tests_from_being_run(sandbox, make_task):
    result = sandbox.run("head -c 50000000 /dev/zero > large; seq 200000 | (cd /tmp; xargs touch); cat", 60)
    assert result.limit == "files"
    test = "seq 2000 | (cd /logs; xargs touch); python3 -c 'print(0.5)' > /logs/verifier/reward.txt; sleep 0.2"
    assert verify(sandbox, make_task(test=test)).reward == 0.5


@pytest.mark.parametrize(
    "code",
    [
        "held = bytearray(1 << 30)",
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        held = bytearray(100 << 20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        "import os\nos.write(os.memfd_create('x'), bytes(1 << 20))",
        "import mmap\nheld = [mmap.mmap(-1, 1 << 26) for _ in range(100)]\n"
        "for part in held:\n    part.write(bytes(1 << 26))",
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nfor _ in range(8):\n"
        "    if os.fork() == 0:\n        held = bytearray(100 << 20)\n        time.sleep(60)\ntime.sleep(60)",
        "import mmap\nheld = mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | 0x4000, mmap.PROT_READ)\nheld.madvise(15)\n"
        "for place in range(0, 1 << 40, 1 << 21):\n    held[place]",
        "import ctypes, os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        ctypes.CDLL(None).prctl(15, b'\\x0cVmPTE: -999999', 0, 0, 0)\n"
        "        held = bytearray(100 << 20)\n        time.sleep(60)\ntime.sleep(60)",
    ],
    ids=["one process", "many processes", "memory files", "shared mappings", "hidden", "page tables", "forged numbers"],
)
def test_memory_cannot_be_filled(sandbox, code):
    result = python(sandbox, code, 30)
    assert result.exit_code != 0
    assert result.limit == "memory" or "MemoryError" in result.output or "PermissionError" in result.output


def test_memory_cannot_be_filled_with_sockets(sandbox):
    result = python(
        sandbox,
        "import os, socket, time\nfor _ in range(4):\n    if os.fork() == 0:\n        held = []\n"
        "        for _ in range(500):\n            held.append(socket.socketpair())\n        time.sleep(60)\n"
        "time.sleep(60)\n",
    )
    assert (result.exit_code, result.limit) == (137, "files")


def test_the_terminals_of_the_machine_cannot_be_used_up(sandbox):
    result = python(
        sandbox, "import os, time\nheld = [os.openpty() for _ in range(200)]\nprint(len(held))\ntime.sleep(60)\n"
    )
    assert (result.exit_code, result.limit) == (137, "files")


def test_endless_output_is_cut(sandbox):
    result = sandbox.run("echo begin; yes | head -c 100000000; echo end", 30)
    assert result.output.startswith("begin\ny\n")
    assert result.output.endswith("y\nend\n")
    assert result.truncated == 100_000_000 + len("begin\nend\n") - 32_000
    assert f"[... {result.truncated} bytes left out ...]" in result.output


def test_a_daemon_does_not_live_to_see_the_verification(sandbox, make_task):
    loop = "while :; do echo 1 > /app/score.txt; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    sandbox.run(f"setsid nohup bash -c 'trap \"\" TERM HUP; {loop}' > /dev/null 2>&1 &", 30)
    test = f"echo 0 > /app/score.txt; seq 10000 > /dev/null; {SCORE}"
    assert verify(sandbox, make_task(test=test)).reward == 0.0


def test_the_supervisor_cannot_be_ended_or_stopped(sandbox):
    result = sandbox.run(
        "kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1; echo forged > /proc/1/fd/1; cat /proc/1/fd/0 /proc/1/mem",
        60,
    )
    assert result.output.count("Permission denied") == 3
    assert sandbox.run("echo alive", 30).output == "alive\n"
    sandbox.run("kill -9 -1", 30)
    assert sandbox.run("echo alive", 30).output == "alive\n"


def test_processes_of_the_host_are_out_of_reach(sandbox):
    victim = subprocess.Popen(["sleep", "60"])
    try:
        sandbox.run(f"kill -9 {victim.pid} {os.getpid()} {os.getppid()}", 30)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_other_episodes_are_out_of_sight(sandbox, provider, make_task):
    other = provider.open(make_task())
    try:
        other.run("SECRET=hunter2 sleep 60 & echo hunter2 > /tmp/secret", 30)
        result = sandbox.run(
            "cat /tmp/secret /proc/*/environ /proc/*/cmdline /proc/*/root/tmp/secret | tr '\\0' '\\n'", 60
        )
        assert "hunter2" not in result.output
    finally:
        other.close()


def test_tracing_and_new_namespaces_are_refused(sandbox):
    result = python(
        sandbox,
        "import ctypes\nlibrary = ctypes.CDLL(None, use_errno=True)\n"
        "print(library.ptrace(16, 1, 0, 0), ctypes.get_errno())\n"
        "print(library.unshare(0x10000000), ctypes.get_errno())\n"
        "print(library.mount(b'x', b'/tmp', b'tmpfs', 0, 0), ctypes.get_errno())\n"
        "print(library.syscall(250, 1, -3, 0), ctypes.get_errno())\n",
    )
    assert result.output == "-1 1\n" * 4


def test_only_sockets_of_the_network_namespace_can_be_made(sandbox):
    result = python(
        sandbox,
        "import socket\nfor family in range(1, 46):\n    try:\n"
        "        socket.socket(family, socket.SOCK_STREAM if family != 16 else socket.SOCK_RAW)\n"
        "        print(family)\n    except OSError as error:\n        assert error.errno == 97, (family, error)\n",
    )
    assert result.output == "1\n2\n10\n16\n"


def test_what_is_counted_for_the_whole_machine_is_refused(sandbox):
    number = {"x86_64": 206, "aarch64": 0}[platform.machine()]
    result = python(
        sandbox,
        "import ctypes\nlibrary, context = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong()\n"
        f"print(library.syscall({number}, 60000, ctypes.byref(context)), ctypes.get_errno())\n",
    )
    assert result.output == "-1 1\n"


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir -p /logs/verifier; echo 1 > /app/one; ln -s /app/one /logs/verifier/reward.txt",
        "echo 1 > /app/one; ln -s /app /logs/verifier; ln /app/one /app/reward.txt",
        "mkdir -p /logs/verifier; mkfifo /logs/verifier/reward.txt",
        "mkdir -p /logs/verifier/reward.txt/deep; chmod 000 /logs/verifier/reward.txt",
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt; exit' > /tests/test.sh; chmod 444 /tests/test.sh",
        "rm -rf /logs /tests; mv /logs /x; ln -s /app /logs; head -c 99999999 /dev/zero > /logs/x; chmod 000 /logs",
        "mkdir -p ~/.config ~/bin; echo 'echo 1 > /logs/verifier/reward.txt' > ~/.bashrc; cp ~/.bashrc ~/.profile",
        "cd /logs; for i in $(seq 300); do mkdir ddddddddddddddddddddddddd; cd ddddddddddddddddddddddddd; done",
        "chmod 000 /",
    ],
)
def test_the_reward_cannot_be_planted(sandbox, make_task, trick):
    sandbox.run(trick, 60)
    assert verify(sandbox, make_task(test="mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt")).reward == 0.0


def test_a_link_is_no_reward(sandbox, make_task):
    with pytest.raises(VerificationError, match=r"cannot be read"):
        verify(sandbox, make_task(test="mkdir -p /logs/verifier; ln -s /app/score.txt /logs/verifier/reward.txt"))


def test_time_runs_out(sandbox):
    result = sandbox.run("trap '' TERM INT HUP; echo begun; sleep 60 & sleep 60", 3)
    assert (result.output, result.exit_code, result.timed_out, result.limit) == ("begun\n", 137, True, "time")
    assert sandbox.run("ps -e -o stat=,comm= | grep -v ^Z | grep -c sleep", 30).output == "0\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_a_run_that_is_ended(make_task, how):
    marker = f"{how}{os.getpid()}"
    program = f"""
import sys
from stacx_core.swe.sandboxes import sandbox_provider
from stacx_core.swe.tasks import read_task
sandbox = sandbox_provider("bubblewrap").open(read_task(sys.argv[1]))
sandbox.run("setsid sleep {marker} & echo", 30)
print("begun", flush=True)
sandbox.run("sleep {marker}", 60)
"""
    run = subprocess.Popen(
        [sys.executable, "-c", program, str(make_task().folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        _wait_until(lambda: len(_sleeping(marker)) == 2)
        run.send_signal(how)
        run.wait(30)
    finally:
        run.kill()
        run.wait()
    _wait_until(lambda: not _sleeping(marker))


def _wait_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < until


def _sleeping(marker: str) -> list[str]:
    """Processes of the host that sleep for a certain time."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", marker.encode()]:
            found.append(file.parent.name)
    return found
