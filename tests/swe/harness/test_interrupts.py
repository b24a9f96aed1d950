"""Ctrl-C while a command runs in a sandbox: nothing is waited for, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stacx_core
from gateway_parts import Scripted
from stacx_core.errors import EpisodeError
from stacx_core.rollout.episode_rollout import EpisodeRollout
from stacx_core.trainer.ahead import RolloutsAhead

SLEEP = ("sleep", "4244.5")
EXPERTS = """
def through_the_loop(observation):
    return "```bash\\nsleep 4244.5\\n```"


def through_the_harness(observation):
    return "RUN sleep 4244.5"
"""
ENDED = 60
"""Seconds within which a command must have ended; what it would wait for takes ten minutes."""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(talker: Path, small_tasks: Path, agent: str, traces: Any, tmp_path: Path) -> Iterator[Start]:
    """Start `stacx` as a process, its commands allowed ten minutes."""
    (tmp_path / "sleepers.py").write_text(EXPERTS)
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        path = os.pathsep.join([str(tmp_path), str(Path(stacx_core.__file__).parents[1]), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-m", "stacx_core", *arguments],
            env={**clean, "PYTHONPATH": path},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def command(talker: Path, small_tasks: Path, agent: str, server: Any) -> Callable[[str, bool], list[str]]:
    """The words of a command that has an expert or a model wait in the sandbox, by the agent or by a harness."""

    def words(name: str, harness: bool) -> list[str]:
        driven = ["--harness", agent, "--harness-timeout", "600"] if harness else []
        expert = f"sleepers:through_the_{'harness' if harness else 'loop'}"
        server.answer = lambda messages: "RUN sleep 4244.5" if harness else "```bash\nsleep 4244.5\n```"
        output = ["--output-dir", "out"]
        if name == "eval":
            return ["eval", str(small_tasks), "--endpoint", server.url, "--command-timeout", "600", *driven, *output]
        given = ["--hf-checkpoint", str(talker), "--environment", f"harbor:{small_tasks}?command_timeout=600"]
        given += ["--teacher", expert, "--rollout-max-response-len", "64", *driven, *output]
        if name == "collect":
            return ["collect", *given, "--num-episodes", "2"]
        sizes = ["--rollout-batch-size", "2", "--num-rollout", "1", "--lr", "1e-3"]
        return ["train", "--algorithm", "online_dagger", "--dagger-beta-start", "1", *sizes, *given]

    return words


@pytest.mark.parametrize(
    ("name", "harness", "impatient"),
    [
        *((name, harness, False) for name in ("train", "eval", "collect") for harness in (False, True)),
        *((name, True, True) for name in ("train", "eval")),
    ],
)
def test_nothing_is_left(
    start: Start,
    command: Callable[[str, bool], list[str]],
    traces: Any,
    running: Any,
    eventually: Any,
    name: str,
    harness: bool,
    impatient: bool,
) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    process = start(*command(name, harness))
    eventually(lambda: running(*SLEEP) or process.poll() is not None, seconds=120)
    process.send_signal(signal.SIGINT)
    if impatient:
        eventually(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), seconds=ENDED)
    _, said = process.communicate(timeout=ENDED)
    # While Python takes itself apart, the signal has its own effect again.
    assert process.returncode in ((130, -signal.SIGINT) if impatient else (130,)), said
    assert ("interrupted" in said, "Traceback" in said) == (True, False), said
    assert Path("/proc/self/mounts").read_text() == mounts
    # After a second signal the keepers of harnesses and the kernel do what is left to do.
    eventually(lambda: not running(*SLEEP) and set(traces.processes()) <= {os.getpid()})
    eventually(lambda: not list(traces.temporary.iterdir()))


def test_a_killed_run_leaves_nothing(
    start: Start, command: Callable[[str, bool], list[str]], traces: Any, running: Any, eventually: Any
) -> None:
    process = start(*command("eval", True))
    eventually(lambda: running(*SLEEP) or process.poll() is not None, seconds=120)
    process.kill()
    eventually(lambda: not running(*SLEEP) and set(traces.processes()) <= {os.getpid()})
    eventually(lambda: not list(traces.temporary.iterdir()))


class Sleepers(Scripted):
    """An engine whose answers are waited for in the sandbox."""

    def abort(self) -> None:
        return


@pytest.mark.parametrize("harness", [False, True], ids=["agent", "harness"])
def test_a_rollout_made_ahead_is_broken_off(
    host_args: Any, tokenizer: Any, small_tasks: Path, agent: str, running: Any, eventually: Any, harness: bool
) -> None:
    args = host_args(
        environment=f"harbor:{small_tasks}?command_timeout=600",
        harness=agent if harness else None,
        harness_timeout=600.0 if harness else None,
        num_tasks=2,
        rollout_batch_size=2,
        n_samples_per_prompt=1,
    )
    engine = Sleepers(lambda said: "RUN sleep 4244.5" if harness else "```bash\nsleep 4244.5\n```", tokenizer)
    ahead = RolloutsAhead(EpisodeRollout(args, tokenizer, 65_536), engine, range(1), 0)
    with ahead:
        eventually(lambda: running(*SLEEP))
    assert not ahead._thread.is_alive()
    assert not running(*SLEEP)
    with pytest.raises(EpisodeError):
        ahead.take(0)
