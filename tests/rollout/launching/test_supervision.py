"""Servers are watched, replaced a bounded number of times, and end with the run however it ends."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import stacx_core
from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.launch import model_info
from stacx_core.rollout.sglang.supervision import Supervisor

QUICK = Watch(interval=0.1, timeout=1.0, max_restarts=2)
SECONDS = 30.0
"""More than anything here takes."""


class Told:
    """Keeps what a supervisor tells; `refuse` makes the update of a server that comes back fail."""

    def __init__(self):
        self.events = queue.Queue()
        self.refuse = False

    def lost(self, index, cause):
        self.events.put(("lost", index, str(cause)))

    def back(self, index, url):
        if self.refuse:
            raise ValueError("no weights")
        self.events.put(("back", index, url))

    def gone(self, index, cause):
        self.events.put(("gone", index, str(cause)))

    def next(self):
        return self.events.get(timeout=SECONDS)


@pytest.fixture
def told():
    return Told()


def leader(supervisor, traces, index):
    """The process id of a server."""
    server = supervisor.processes()[index]
    return next(pid for pid in traces.servers() if server.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_servers_start_together_and_end_with_the_block(plan, traces):
    with Supervisor(plan(), 2, QUICK) as supervisor:
        urls = supervisor.start()
        assert len(set(urls)) == 2
        assert len(traces.servers()) == 2
    assert traces.all() == []


def test_an_exception_ends_the_servers(plan, traces):
    def fail():
        with Supervisor(plan(), 1, QUICK) as supervisor:
            supervisor.start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert traces.all() == []


def test_one_that_does_not_start_ends_all_at_once(plan, traces):
    start = time.monotonic()
    with pytest.raises(EngineError, match="server 1 exited with code 3"):
        Supervisor(plan("--bad", "{index}", "--status", "503", timeout=300.0), 2, QUICK).start()
    assert time.monotonic() - start < SECONDS
    assert traces.all() == []


def test_a_killed_server_is_replaced_and_the_others_stay(plan, traces, told):
    with Supervisor(plan(), 2, QUICK) as supervisor:
        urls = supervisor.start()
        supervisor.attach(told)
        os.kill(leader(supervisor, traces, 1), signal.SIGKILL)
        what, index, cause = told.next()
        assert (what, index) == ("lost", 1)
        assert f"SGLang server 1 at {urls[1]} was killed by signal 9" in cause
        what, index, url = told.next()
        assert (what, index) == ("back", 1)
        assert model_info(url)["served_model_name"] == supervisor.processes()[1].name
        assert supervisor.processes()[0].url == urls[0]
    assert traces.all() == []


def test_a_stopped_server_is_noticed_and_replaced(plan, traces, told):
    with Supervisor(plan(), 1, QUICK) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        start = time.monotonic()
        os.kill(leader(supervisor, traces, 0), signal.SIGSTOP)
        what, _, cause = told.next()
        assert what == "lost"
        assert "showed no sign of health for 1 s (--sglang-health-timeout)" in cause
        assert time.monotonic() - start >= QUICK.timeout
        assert told.next()[0] == "back"
    assert traces.all() == []


def test_a_server_that_answers_503_is_replaced(plan, told, tmp_path):
    sick = tmp_path / "sick"
    with Supervisor(plan("--sick", str(sick)), 1, QUICK) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        sick.touch()
        assert told.next()[0] == "lost"
        sick.unlink()
        assert told.next()[0] == "back"


def test_health_is_not_judged_while_generation_is_paused(plan, told, tmp_path, eventually):
    sick = tmp_path / "sick"
    with Supervisor(plan("--sick", str(sick)), 1, QUICK) as supervisor:
        (url,) = supervisor.start()
        with supervisor.quiet():
            supervisor.attach(told)
            sick.touch()
            start = time.monotonic()
            eventually(lambda: time.monotonic() - start > 3 * QUICK.timeout)
            sick.unlink()
        assert told.events.empty()
        assert supervisor.processes()[0].url == url


def test_restarts_are_bounded_and_the_last_failure_is_told(plan, traces, told):
    with Supervisor(plan(), 1, QUICK) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        for _ in range(QUICK.max_restarts):
            os.kill(leader(supervisor, traces, 0), signal.SIGKILL)
            assert [told.next()[0], told.next()[0]] == ["lost", "back"]
        os.kill(leader(supervisor, traces, 0), signal.SIGKILL)
        what, index, cause = told.next()
        assert (what, index) == ("gone", 0)
        assert "killed by signal 9" in cause
        assert supervisor.processes() == [None]
        assert not supervisor.restart(0, EngineError("again"))
    assert traces.all() == []


def test_a_server_that_cannot_be_brought_up_to_date_does_not_come_back(plan, traces, told):
    told.refuse = True
    with Supervisor(plan(), 1, QUICK) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        assert supervisor.restart(0, EngineError("useless"))
        assert told.next() == ("lost", 0, "useless")
        assert told.next()[0] == "lost"
        what, _, cause = told.next()
        assert what == "gone"
        assert "no weights" in cause
    assert traces.all() == []


def connections(url):
    """How many are established to a server, after /proc/net/tcp."""
    end = f":{int(url.rpartition(':')[2]):04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(end) and row[3] == "01" for row in rows)


def test_closing_does_not_wait_for_a_stopped_server(plan, traces, told, eventually):
    supervisor = Supervisor(plan(), 1, Watch(interval=0.1, timeout=300.0))
    (url,) = supervisor.start()
    os.kill(leader(supervisor, traces, 0), signal.SIGSTOP)
    supervisor.attach(told)
    eventually(lambda: connections(url))
    start = time.monotonic()
    supervisor.close()
    assert time.monotonic() - start < SECONDS
    assert traces.all() == []
    supervisor.close()


PROGRAM = """
import sys, threading
from pathlib import Path
from stacx_core.rollout.sglang.launch import LaunchPlan
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.supervision import Supervisor

plan = LaunchPlan(sys.executable, "fake_sglang", "model", ("--mark", sys.argv[1], *sys.argv[4:]), Path(sys.argv[2]))
supervisor = Supervisor(plan, 2)
print("starting", flush=True)
supervisor.start()
print("started", flush=True)
if sys.argv[3] == "raise":
    raise ValueError("a bug")
if sys.argv[3] == "wait":
    threading.Event().wait()
"""


@pytest.fixture
def program(plan, traces, tmp_path):
    """A run with two servers that then does nothing, raises, or returns."""

    def run(then, *arguments):
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(stacx_core.__file__).parents[1])])
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), traces.mark, str(tmp_path), then, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.mark.parametrize(("then", "code"), [("return", 0), ("raise", 1)])
def test_a_run_that_forgets_its_servers_ends_them(program, traces, then, code):
    run = program(then)
    _, errors = run.communicate(timeout=SECONDS)
    assert run.returncode == code, errors
    assert traces.all() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("while_starting", [False, True])
def test_a_signal_to_the_run_ends_its_servers(program, traces, eventually, tmp_path, number, while_starting):
    run = program("wait", *(["--until", str(tmp_path / "never")] if while_starting else []))
    assert run.stdout.readline() == "starting\n"
    if not while_starting:
        assert run.stdout.readline() == "started\n"
    eventually(lambda: len(traces.servers()) == 2)
    run.send_signal(number)
    run.communicate(timeout=SECONDS)
    eventually(lambda: not traces.all())
