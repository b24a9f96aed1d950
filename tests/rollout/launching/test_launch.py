"""A launched server is ours, has ports of its own, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from stacx_core.errors import ConfigError, EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.launch import (
    LaunchPlan,
    PortTaken,
    free_ports,
    is_free,
    launch,
    model_info,
)
from stacx_core.sglang_knobs import SGLANG_KNOBS


def ports_of(*pairs):
    """Gives these, then free ones."""
    left = list(pairs)
    return lambda: left.pop(0) if left else free_ports()


def port_of(server):
    return int(server.url.rpartition(":")[2])


@pytest.fixture
def closing():
    return threading.Event()


def test_a_server_answers_with_its_own_name_and_leaves_nothing(plan, traces, closing):
    server = launch(plan(), 0, closing)
    assert model_info(server.url)["served_model_name"] == server.name
    assert len(traces.all()) > 3
    server.end()
    assert traces.all() == []
    assert is_free(port_of(server))
    server.end()


def test_the_index_is_put_into_the_arguments(plan, tmp_path):
    command = plan("--base-gpu-id", "{index}").command(3, "name", (1, 2))
    assert command[-2:] == ["--base-gpu-id", "3"]


def test_a_silent_listener_on_the_port_is_avoided(plan, traces, closing):
    held, other = free_ports()
    with socket.create_server(("127.0.0.1", held)):
        server = launch(plan(), 0, closing, ports_of((held, other)))
    assert port_of(server) not in (held, other)
    server.end()
    assert traces.all() == []


def test_a_listener_on_the_port_of_the_group_is_avoided(plan, closing):
    held, other = free_ports()
    with socket.create_server(("", held)):
        server = launch(plan(), 0, closing, ports_of((other, held)))
    assert port_of(server) != other
    server.end()


def test_another_runs_server_is_not_mistaken_for_ours(plan, traces, closing):
    theirs = launch(plan(), 0, closing)
    _, other = free_ports()
    ours = launch(plan(), 1, closing, ports_of((port_of(theirs), other)))
    assert ours.url != theirs.url
    assert model_info(ours.url)["served_model_name"] == ours.name
    theirs.end()
    ours.end()
    assert traces.all() == []


def test_ports_that_are_always_taken_end_the_start(plan, traces, closing):
    held, other = free_ports()
    with socket.create_server(("127.0.0.1", held)), pytest.raises(PortTaken, match=rf"{held}.*taken"):
        launch(plan(), 0, closing, lambda: (held, other))
    assert traces.all() == []


def test_a_server_that_exits_is_told_with_its_last_words(plan, traces, closing, tmp_path):
    with pytest.raises(EngineError, match="server 2 exited with code 3") as caught:
        launch(plan("--bad", "1"), 2, closing)
    assert "no such model: the/model" in str(caught.value)
    assert str(tmp_path / "sglang" / "server_2.log") in str(caught.value)
    assert traces.all() == []


def test_the_words_of_an_earlier_server_are_not_told_again(plan, closing):
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            launch(plan("--bad", "1"), 0, closing)
    assert str(caught.value).count("no such model") == 1


def test_a_server_that_never_gets_ready_is_given_up(plan, traces, closing):
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"not ready after 1 s \(--sglang-start-timeout\)"):
        launch(plan("--status", "503", timeout=1.0), 0, closing)
    assert time.monotonic() - start < 20
    assert traces.all() == []


def test_a_stopped_server_is_ended(plan, traces, closing):
    server = launch(plan(), 0, closing)
    for pid in traces.servers():
        os.kill(pid, signal.SIGSTOP)
    server.end()
    assert traces.all() == []


def test_a_killed_server_is_told_and_leaves_nothing(plan, traces, closing, eventually):
    server = launch(plan(), 0, closing)
    (pid,) = traces.servers()
    os.kill(pid, signal.SIGKILL)
    eventually(server.ended)
    assert server.ended() == "was killed by signal 9"
    assert traces.all() == []


def test_a_killed_keeper_takes_its_server_along(plan, traces, closing, eventually):
    server = launch(plan(), 0, closing)
    server.process.kill()
    eventually(lambda: not traces.servers())
    server.end()
    for pid in traces.processes():
        os.kill(pid, signal.SIGKILL)
    for path in traces.all():
        if not isinstance(path, int) and path.is_file():
            path.unlink()


@pytest.fixture
def knobs():
    """The knobs of servers, by name."""
    return {knob.name: knob for knob in SGLANG_KNOBS}


def test_the_plan_of_the_knobs(knobs, tmp_path):
    values = {name: knob.default for name, knob in knobs.items()}
    made = LaunchPlan.of(Args({**values, "sglang_args": "--tp 2 --name 'a b'"}), "model", tmp_path)
    assert made.arguments == ("--tp", "2", "--name", "a b")
    assert made.module == "sglang.launch_server"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("--port 3", "sets --port"), ("--host=0.0.0.0", "sets --host"), ("'", "is no list of arguments")],
)
def test_arguments_that_stacx_chooses_are_refused(knobs, text, problem):
    with pytest.raises(ConfigError, match=problem):
        knobs["sglang_args"].validate(text, "--sglang-args")
