"""`stacx train` through a real router in front of real servers, one of which dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stacx_core.rollout import keeper
from stacx_core.rollout.sglang.launch import free_ports, is_healthy, model_info

START = 60.0
ROLLOUTS = 8
SLACK = 60.0
"""Seconds that so many rollouts may take on a busy machine."""

LAUNCH = "import sys; sys.modules['sglang'] = None; from sglang_router.launch_router import main; main()"
"""A router does without sglang, which it imports where it can, and which cannot be imported like that on a CPU."""

TOLERANCE = 1e-4
"""Nats per token."""


@pytest.fixture
def router(sglang_python: str, eventually: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a router without servers, which asks them in turn."""
    if subprocess.run([sglang_python, "-c", "import sglang_router"], capture_output=True).returncode:
        pytest.skip(f"{sglang_python} has no sglang_router (nox -s sglang installs it)")
    port, metrics = free_ports()
    command = [sys.executable, "-I", keeper.__file__, str(os.getpid()), sglang_python, "-c", LAUNCH]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), "--policy", "round_robin"]
    with (tmp_path / "router.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: is_healthy(url, 5) or process.poll() is not None, START)
        assert process.poll() is None, (tmp_path / "router.log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait()


def workers(router: str) -> set[str]:
    """The URLs of its servers."""
    with urllib.request.urlopen(router + "/workers", timeout=10) as answer:
        return {worker["url"] for worker in json.load(answer)["workers"]}


def test_a_run_through_a_router_outlives_a_server(
    stacx: Any, router: str, sglang_server: Callable[..., Any], llama: Path, eventually: Any, tmp_path: Path
) -> None:
    """More is begun than is trained, and what was stopped goes on, so that aborts reach the servers too."""
    servers = [sglang_server(llama, number=number) for number in (1, 2)]
    prompts, metrics = tmp_path / "prompts.jsonl", tmp_path / "run" / "metrics.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n} and {n * n}", "label": "0"}) + "\n" for n in range(40)))
    used = []

    def kill_in_the_middle() -> None:
        eventually(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, START + SLACK)
        used.append(workers(router))
        os.kill(servers[1].pid, signal.SIGKILL)

    given = ["--algorithm", "grpo", "--hf-checkpoint", llama, "--prompt-data", prompts, "--label-key", "label"]
    given += ["--rm-type", "exact", "--rollout-engine", "sglang", "--sglang-url", ",".join(s.url for s in servers)]
    given += ["--sglang-router", router, "--sglang-health-interval", "1", "--sglang-health-timeout", "4"]
    given += ["--rollout-batch-size", "4", "--over-sampling-batch-size", "8", "--n-samples-per-prompt", "2"]
    given += ["--rollout-max-response-len", "100", "--partial-rollout", "--use-tis", "--recompute-log-probs"]
    given += ["--num-rollout", ROLLOUTS, "--lr", "0", "--num-threads", "1", "--output-dir", tmp_path / "run"]
    thread = threading.Thread(target=kill_in_the_middle)
    thread.start()
    done = stacx("train", *given)
    thread.join()
    assert done.code == 0, done.err
    assert used == [{server.url for server in servers}]
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["rollout"] for row in rows] == list(range(1, ROLLOUTS + 1))
    assert max(row["train/train_rollout_abs_diff"] for row in rows) < TOLERANCE
    assert rows[0]["rollout/aborted_responses"] > 0
    assert sum(row["rollout/partial_responses"] for row in rows) > 0
    assert model_info(servers[0].url)["weight_version"].startswith(f"{ROLLOUTS}-")
