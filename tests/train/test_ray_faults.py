"""Faults of runs on processes of Ray, through the command: the first cause is named, in time, and nothing is left."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stacx_core

pytest.importorskip("ray")
pytest.importorskip("megatron.core")

START_SECONDS = 240.0
"""How long a run may take to its first rollout, on a machine with other work."""

END_SECONDS = 60.0
"""How long it may take from a fault to its end: the promise of the documentation."""

MEGATRON = ["--backend", "megatron", "--tensor-model-parallel-size", "2"]
TORCH = ["--role-workers", "ray"]

FAILING = '''
"""A plugin whose loss fails on one rank."""

import os

import torch.distributed as dist
from stacx_core import hookimpl

calls = 0


@hookimpl(wrapper=True)
def compute_loss():
    global calls
    result = yield
    calls += 1
    if dist.get_rank() == 1 and calls == int(os.environ["FATAL_LOSS"]):
        raise ValueError("no loss today")
    return result
'''

PATIENT = '''
"""A reward that never comes."""

import sys
import threading


def reward(sample):
    print("waiting", file=sys.stderr, flush=True)
    threading.Event().wait()
'''


class Running:
    """A command in a process of its own; what it writes to its standard error can be waited for."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._read: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._read.put(line)
        self._read.put(None)

    def until(self, text: str, seconds: float = START_SECONDS) -> str:
        """The next line that has the text in it."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._read.get(timeout=max(deadline - time.monotonic(), 0.01))
            assert line is not None, f"it ended before {text!r}:\n{''.join(self.lines)}"
            self.lines.append(line)
            if text in line:
                return line

    def end(self, seconds: float = END_SECONDS) -> tuple[int, str]:
        """Its exit code, and the first line of its error."""
        code = self.process.wait(seconds)
        while (line := self._read.get(timeout=10)) is not None:
            self.lines.append(line)
        return code, next((line for line in self.lines if line.startswith("error: ")), "")


@pytest.fixture
def start(checkpoint: Path, sums: Path, rewards: Path, tmp_path: Path, traces: Any) -> Iterator[Callable[..., Running]]:
    """Start `stacx train`, for many more rollouts than there is time for."""
    running: list[Running] = []

    def go(algorithm: str, *flags: str, output: str = "run", **environment: str) -> Running:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        path = os.pathsep.join([str(rewards), str(tmp_path), str(Path(stacx_core.__file__).parents[1]), *sys.path])
        command = [sys.executable, "-m", "stacx_core", "train", "--algorithm", algorithm, "--lr", "1e-3"]
        command += ["--hf-checkpoint", str(checkpoint), "--prompt-data", str(sums), "--label-key", "label"]
        command += ["--output-dir", str(tmp_path / output), "--rm-type", "fatal_rewards:digits"]
        command += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "4"]
        numbered = [] if "--num-rollout" in flags else ["--num-rollout", "100000"]
        running.append(Running([*command, *numbered, *flags], {**clean, "PYTHONPATH": path, **environment}, tmp_path))
        return running[-1]

    yield go
    for run in running:
        run.process.kill()
        run.process.wait()
    for pid in set(traces.processes()) - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def actors(traces: Any) -> Callable[[], list[int]]:
    """The processes of roles that this test started, in the order of their start."""

    def find() -> list[int]:
        return sorted(pid for pid in traces.processes() if b"RoleActor" in Path(f"/proc/{pid}/cmdline").read_bytes())

    return find


def left(traces: Any) -> set[int]:
    """The processes that a run left behind."""
    return set(traces.processes()) - {os.getpid()}


def test_a_killed_process_is_named_and_the_next_start_works(
    start: Any, actors: Any, traces: Any, eventually: Any, tmp_path: Path
) -> None:
    run = start("grpo", *MEGATRON, "--save-interval", "1")
    run.until("rollout 2/")
    victim = actors()[1]
    os.kill(victim, signal.SIGKILL)
    code, first = run.end()
    assert code == 1
    assert re.match(rf"error: policy rank [01] \(process {victim} on [\d.]+\) died", first), run.lines
    eventually(lambda: not left(traces))
    again = start("grpo", *MEGATRON, "--resume", "--num-rollout", "1", output="run")
    assert again.end(START_SECONDS)[0] == 0, again.lines


def test_a_stopped_process_is_named(start: Any, actors: Any, traces: Any, eventually: Any) -> None:
    run = start("grpo", *MEGATRON, "--worker-timeout", "10")
    run.until("rollout 2/")
    victim = actors()[1]
    os.kill(victim, signal.SIGSTOP)
    code, first = run.end()
    assert code == 1
    assert re.match(rf"error: policy rank [01] \(process {victim} on [\d.]+\) does not answer for 10 s", first), (
        run.lines
    )
    eventually(lambda: not left(traces))


def test_a_process_that_dies_during_a_rollout_ends_it(
    start: Any, actors: Any, traces: Any, eventually: Any, tmp_path: Path
) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    run = start("ppo", *TORCH, "--rm-type", "patient:reward")
    run.until("waiting")
    victim = actors()[1]
    os.kill(victim, signal.SIGKILL)
    code, first = run.end()
    assert code == 1
    assert re.match(rf"error: (policy|critic) rank 0 \(process {victim} on [\d.]+\) died", first), run.lines
    eventually(lambda: not left(traces))


def test_an_exception_in_a_loss_names_the_rank(start: Any, traces: Any, eventually: Any, tmp_path: Path) -> None:
    info = tmp_path / "failing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stacx.recipes]\nfailing = failing\n")
    (tmp_path / "failing.py").write_text(FAILING)
    run = start("grpo", *MEGATRON, FATAL_LOSS="2")
    run.until("error: ")
    code, first = run.end()
    assert code == 1
    assert re.match(r"error: policy rank 1 \(.*\) failed: ValueError: no loss today", first), run.lines
    eventually(lambda: not left(traces))


def test_an_exception_in_a_reward_ends_the_processes(start: Any, traces: Any, eventually: Any) -> None:
    run = start("ppo", *TORCH, FATAL_CALL="20")
    run.until("error: ")
    code, first = run.end()
    assert (code, "ValueError: no such answer" in first) == (1, True), run.lines
    eventually(lambda: not left(traces))


def test_an_interrupt_saves_and_ends_the_processes(start: Any, traces: Any, eventually: Any, tmp_path: Path) -> None:
    run = start("ppo", *TORCH)
    run.until("rollout 2/")
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130, run.lines
    assert (tmp_path / "run" / "checkpoints" / "latest" / "critic").is_dir()
    eventually(lambda: not left(traces))


def test_an_interrupt_while_processes_start_leaves_nothing(start: Any, traces: Any, eventually: Any) -> None:
    def sessions() -> set[Path]:
        return set(Path("/tmp").glob("stacx-ray-*"))

    before = sessions()
    run = start("grpo", *TORCH)
    eventually(lambda: sessions() - before, START_SECONDS)
    ours = sessions() - before
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130, run.lines
    eventually(lambda: not left(traces))
    assert not sessions() & ours


def test_a_run_goes_on_from_its_checkpoint_with_new_processes(
    start: Any, actors: Any, traces: Any, metrics: Any, eventually: Any, tmp_path: Path
) -> None:
    run = start("ppo", *TORCH, "--max-restarts", "1", "--save-interval", "1", "--num-rollout", "40")
    run.until("rollout 3/")
    old = actors()
    os.kill(old[1], signal.SIGKILL)
    told = run.until("restart 1 of 1", END_SECONDS)
    assert re.search(rf"rank 0 \(process {old[1]} on [\d.]+\) died", told)
    assert run.end(START_SECONDS)[0] == 0, run.lines
    assert [line["rollout"] for line in metrics(tmp_path / "run")] == list(range(1, 41))
    eventually(lambda: not left(traces))


def test_a_lost_node_is_named_and_the_rest_of_the_cluster_is_free_again(
    start: Any, actors: Any, eventually: Any, tmp_path: Path
) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=2)
        where = ["--ray-address", cluster.address, "--num-nodes", "2"]
        run = start("ppo", *MEGATRON, *where)
        run.until("rollout 2/")
        cluster.remove_node(node, allow_graceful=False)
        code, first = run.end()
        assert code == 1
        assert re.match(r"error: (policy|critic) rank [01] \(process \d+ on [\d.]+\) died", first), run.lines
        eventually(lambda: not actors())
        short = start("ppo", *TORCH, *where[:2], "--num-rollout", "1", output="next")
        assert short.end(START_SECONDS)[0] == 0, short.lines
        too_many = start("ppo", *MEGATRON, *where[:2], output="many")
        code, first = too_many.end(START_SECONDS)
        assert (code, "has 1 node(s) with 2 CPU(s)" in first) == (2, True), too_many.lines
    finally:
        cluster.shutdown()
        ray.shutdown()
