"""Real servers that Stacx starts: replaced when they fail, kept off taken ports, and gone without a trace."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import stacx_core
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.keeper import descendants, shared_memory
from stacx_core.rollout.sglang.launch import free_ports, is_free, is_healthy, launch, model_info
from stacx_core.rollout.sglang.supervision import Supervisor

WATCH = Watch(interval=1.0, timeout=10.0, max_restarts=2)
SLACK = 10.0
"""Seconds of a busy machine."""

RESTART = 240.0


class Told:
    """Keeps what a supervisor tells."""

    def __init__(self):
        self.events = queue.Queue()

    def lost(self, index, cause):
        self.events.put(("lost", index, str(cause)))

    def back(self, index, url):
        self.events.put(("back", index, url))

    def gone(self, index, cause):
        self.events.put(("gone", index, str(cause)))


@dataclass
class Grip:
    """What a server holds while it runs: processes, shared memory, and its port."""

    processes: list[int]
    memory: set[str]
    port: int

    @classmethod
    def of(cls, keeper, url):
        processes = [keeper, *descendants(keeper)]
        memory = set().union(*map(shared_memory, processes))
        return cls(processes, memory, int(url.rpartition(":")[2]))

    def left(self):
        alive = [pid for pid in self.processes if Path(f"/proc/{pid}").exists()]
        return [*alive, *filter(os.path.exists, self.memory), *([] if is_free(self.port) else [self.port])]


def main_process(server):
    """The process that serves HTTP, a child of the keeper."""
    return next(descendants(server.process.pid))


def test_servers_are_replaced_and_leave_nothing(launch_plan, traces):
    told = Told()
    with Supervisor(launch_plan, 2, WATCH) as supervisor:
        urls = supervisor.start()
        supervisor.attach(told)
        grips = [Grip.of(server.process.pid, server.url) for server in supervisor.processes()]
        assert all(len(grip.processes) >= 4 and grip.memory for grip in grips)

        os.kill(main_process(supervisor.processes()[0]), signal.SIGKILL)
        start = time.monotonic()
        what, index, cause = told.events.get(timeout=SLACK)
        assert (what, index) == ("lost", 0)
        assert "was killed by signal 9" in cause
        what, index, url = told.events.get(timeout=RESTART)
        assert (what, index) == ("back", 0)
        assert is_healthy(url, SLACK)
        assert grips[0].left() == []
        assert supervisor.processes()[1].url == urls[1]

        start = time.monotonic()
        for pid in grips[1].processes[1:]:
            os.kill(pid, signal.SIGSTOP)
        what, index, cause = told.events.get(timeout=RESTART)
        assert (what, index) == ("lost", 1)
        assert "showed no sign of health for 10 s" in cause
        assert time.monotonic() - start < WATCH.interval + WATCH.timeout + SLACK
        what, index, url = told.events.get(timeout=RESTART)
        assert (what, index) == ("back", 1)
        assert is_healthy(url, SLACK)
        assert grips[1].left() == []
        grips = [Grip.of(server.process.pid, server.url) for server in supervisor.processes()]
    assert [grip.left() for grip in grips] == [[], []]
    assert traces.all() == []


def test_a_scheduler_that_stops_alone_is_noticed(launch_plan, traces):
    told = Told()
    with Supervisor(launch_plan, 1, Watch(interval=1.0, timeout=10.0, max_restarts=0)) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        keeper = supervisor.processes()[0].process.pid
        (scheduler,) = [p for p in descendants(keeper) if b"scheduler" in Path(f"/proc/{p}/cmdline").read_bytes()]
        os.kill(scheduler, signal.SIGSTOP)
        what, _, cause = told.events.get(timeout=WATCH.interval + WATCH.timeout + SLACK)
        assert what == "gone"
        assert "no sign of health" in cause
    assert traces.all() == []


@pytest.mark.parametrize("which", [0, 1])
def test_a_taken_port_is_avoided(launch_plan, traces, which):
    pairs = [free_ports(), free_ports()]
    left = list(pairs)
    with socket.create_server(("127.0.0.1" if which == 0 else "", pairs[0][which])):
        server = launch(launch_plan, 0, threading.Event(), lambda: left.pop(0))
    assert server.url.endswith(f":{pairs[1][0]}")
    assert model_info(server.url)["served_model_name"] == server.name
    grip = Grip.of(server.process.pid, server.url)
    server.end()
    assert grip.left() == []
    assert traces.all() == []


PROGRAM = """
import sys, threading
from pathlib import Path
from stacx_core.rollout.sglang.launch import LaunchPlan
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.supervision import Supervisor

python, module, model, folder, *arguments = sys.argv[1:]
supervisor = Supervisor(LaunchPlan(python, module, model, tuple(arguments), Path(folder), 240.0), 1)
supervisor.start()
print(supervisor.processes()[0].process.pid, supervisor.processes()[0].url, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_run_ends_its_server(launch_plan, traces, eventually, number):
    plan = launch_plan
    path = os.pathsep.join([str(Path(stacx_core.__file__).parents[1]), os.environ["PYTHONPATH"]])
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, plan.python, plan.module, plan.model, str(plan.folder), *plan.arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    keeper, url = run.stdout.readline().split()
    grip = Grip.of(int(keeper), url)
    assert len(grip.processes) >= 4
    run.send_signal(number)
    run.communicate(timeout=SLACK)
    eventually(lambda: not grip.left() and not traces.all())
