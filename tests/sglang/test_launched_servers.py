"""Real servers that Stacx starts: watched as a whole, kept off taken ports, and gone without a trace."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from stacx_core.rollout.keeper import descendants, shared_memory
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.launch import free_ports, is_free, launch, model_info
from stacx_core.rollout.sglang.supervision import Supervisor

WATCH = Watch(interval=1.0, timeout=10.0, max_restarts=0)
SLACK = 10.0
"""Seconds of a busy machine."""


class Told:
    """Keeps what a supervisor tells."""

    def __init__(self):
        self.events = queue.Queue()

    def gone(self, index, cause):
        self.events.put((index, str(cause)))


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


def test_a_scheduler_that_stops_alone_is_noticed(launch_plan, traces):
    told = Told()
    with Supervisor(launch_plan, 1, WATCH) as supervisor:
        supervisor.start()
        supervisor.attach(told)
        keeper = supervisor.processes()[0].process.pid
        (scheduler,) = [p for p in descendants(keeper) if b"scheduler" in Path(f"/proc/{p}/cmdline").read_bytes()]
        os.kill(scheduler, signal.SIGSTOP)
        _, cause = told.events.get(timeout=WATCH.interval + WATCH.timeout + SLACK)
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
