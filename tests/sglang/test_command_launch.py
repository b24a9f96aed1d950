"""`stacx train` on servers that it starts itself: what becomes of the run and of them when either is hit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stacx_core
from stacx_core.rollout.keeper import descendants, parent_of, shared_memory
from stacx_core.rollout.sglang.launch import is_free

INTERVAL, TIMEOUT = 1, 10
SLACK = 20.0
"""Seconds of a busy machine."""

START = 240.0
REWARDS = '''
import os
import time


def digits(sample):
    """The share of digits; not told as long as a certain file exists."""
    while os.path.exists(os.environ["HOLD"]):
        time.sleep(0.05)
    return sum(map(str.isdigit, sample.response)) / 32
'''
Eventually = Callable[..., None]


@dataclass(frozen=True)
class Run:
    """A run in a process of its own.

    Args:
        folder: Of its output.
        process: The command.
        eventually: Waits.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    eventually: Eventually

    def lines(self) -> list[dict[str, float]]:
        """The metrics so far."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self) -> str:
        """What it wrote to standard error."""
        return self.folder.with_suffix(".err").read_text()

    def wait_for(self, words: str, seconds: float = START) -> None:
        """Until it says so."""
        self.eventually(lambda: words in self.said() or self.process.poll() is not None, seconds)
        assert words in self.said()

    def hold(self) -> None:
        """Do nothing after the next generation, which leaves the machine to servers that start."""
        self.folder.with_suffix(".hold").touch()

    def goes_on(self, rollouts: int = 2) -> None:
        """Until so many further rollouts are done."""
        self.folder.with_suffix(".hold").unlink(missing_ok=True)
        done = len(self.lines())
        self.eventually(lambda: len(self.lines()) >= done + rollouts or self.process.poll() is not None, START)
        assert self.process.poll() is None, self.said()

    def end(self, seconds: float = SLACK) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def keepers(self) -> list[int]:
        """The processes that look after a server each, by the server's number."""
        return sorted(
            (pid for pid in descendants(self.process.pid) if parent_of(Path(f"/proc/{pid}")) == self.process.pid),
            key=lambda pid: f"server_{number_of(pid)}",
        )

    def grip(self) -> list[Path | int]:
        """Shared memory and ports that its servers hold."""
        processes = list(descendants(self.process.pid))
        memory = set[str]().union(*map(shared_memory, processes))
        assert memory
        return [*map(Path, memory), *(int(argument(pid, flag)) for pid in self.keepers() for flag in PORTS)]


PORTS = ("--port", "--nccl-port")


def held(what: list[Path | int]) -> list[Path | int]:
    """Shared memory that exists, and ports that are taken."""
    return [one for one in what if (one.exists() if isinstance(one, Path) else not is_free(one))]


def argument(pid: int, flag: str) -> str:
    """What follows a flag in the command of a process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index(flag) + 1]


def number_of(pid: int) -> str:
    """The number of a server, which its standard output tells."""
    return Path(os.readlink(f"/proc/{pid}/fd/1")).stem.rpartition("_")[2]


@pytest.fixture
def launched(
    sglang_python: str, cpu_servers: str, llama: Path, sums: Path, traces: Any, eventually: Eventually, tmp_path: Path
) -> Iterator[Callable[..., Run]]:
    """Start `stacx train --sglang-launch`, and wait until it has done two rollouts."""
    runs: list[Run] = []

    def start(servers: int, *flags: str) -> Run:
        folder = tmp_path / "run"
        command = [sys.executable, "-m", "stacx_core", "train", "--algorithm", "grpo", "--hf-checkpoint", str(llama)]
        command += ["--prompt-data", str(sums), "--label-key", "label", "--rm-type", "patient_rewards:digits"]
        command += ["--rollout-engine", "sglang", "--sglang-launch", str(servers), "--sglang-python", sglang_python]
        command += ["--sglang-module", "launch_cpu_server", "--sglang-args", cpu_servers, "--output-dir", str(folder)]
        command += ["--sglang-health-interval", str(INTERVAL), "--sglang-health-timeout", str(TIMEOUT)]
        command += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "32"]
        command += ["--num-rollout", "100000", "--lr", "1e-4", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        clean["HOLD"] = str(folder.with_suffix(".hold"))
        with folder.with_suffix(".err").open("wb") as stream:
            process = subprocess.Popen(
                command, env=clean, stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True
            )
        runs.append(Run(folder, process, eventually))
        runs[-1].goes_on()
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()
    eventually(lambda: not traces.processes())


@pytest.fixture
def cpu_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_arguments: str) -> str:
    """The arguments of servers on the CPU; sets the environment that they and the run need."""
    (tmp_path / "patient_rewards.py").write_text(REWARDS)
    path = [os.environ["PYTHONPATH"], str(tmp_path), str(Path(stacx_core.__file__).parents[1]), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return cpu_arguments


def test_servers_are_replaced_and_ctrl_c_leaves_nothing(launched: Any, traces: Any, eventually: Eventually) -> None:
    run = launched(2)
    grip = run.grip()
    first, second = run.keepers()
    os.kill(next(descendants(first)), signal.SIGKILL)
    run.hold()
    run.wait_for("SGLang server 0 is back")
    assert "was killed by signal 9" in run.said()
    run.goes_on()

    began = time.monotonic()
    for pid in descendants(second):
        os.kill(pid, signal.SIGSTOP)
    run.wait_for("restarting (2 more time(s) at most): SGLang server 1 at")
    assert time.monotonic() - began < INTERVAL + TIMEOUT + SLACK
    run.hold()
    run.wait_for("SGLang server 1 is back")
    assert f"showed no sign of health for {TIMEOUT} s (--sglang-health-timeout)" in run.said()
    run.goes_on()

    grip += run.grip()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.said()
    assert "interrupted; saved after rollout" in run.said()
    eventually(lambda: not traces.all() and not held(grip))
    assert not (run.folder / "sglang" / "weights").exists()
    lines = run.lines()
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert max(line["train/train_rollout_abs_diff"] for line in lines) < 1e-4


def test_servers_that_die_for_good_end_the_run_with_the_first_cause(launched: Any, traces: Any) -> None:
    run = launched(2, "--sglang-max-restarts", "0")
    first, second = run.keepers()
    port = argument(first, "--port")
    os.kill(next(descendants(first)), signal.SIGKILL)
    run.wait_for("not restarting again")
    run.goes_on()
    os.kill(next(descendants(second)), signal.SIGKILL)
    assert run.end() == 1, run.said()
    assert "error: no SGLang server is left; the first was lost because" in run.said()
    assert f":{port}" in run.said().rpartition("lost because")[2].splitlines()[0]
    assert traces.all() == []


def test_a_killed_run_leaves_nothing(launched: Any, traces: Any, eventually: Eventually) -> None:
    run = launched(1)
    grip = run.grip()
    run.process.kill()
    eventually(lambda: not traces.all() and not held(grip))
