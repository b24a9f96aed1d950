"""`stacx train` on real servers that somebody else started, one of which is stopped in the middle."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stacx_core.rollout.sglang.launch import model_info

TIMEOUT = 8
ROLLOUTS = 12
SLACK = 60.0
"""Seconds that so many rollouts may take on a busy machine."""


def test_a_stopped_server_leaves_its_work_to_the_other(
    stacx: Any, sglang_server: Callable[..., Any], llama: Path, sums: Path, eventually: Any, tmp_path: Path
) -> None:
    # Other tests want the first one with the weights of the folder.
    servers = [sglang_server(llama, number=number) for number in (1, 2)]
    metrics, group = tmp_path / "run" / "metrics.jsonl", servers[1].process.pid
    stopped = []

    def stop_in_the_middle() -> None:
        eventually(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, SLACK)
        os.killpg(group, signal.SIGSTOP)
        stopped.append(time.monotonic())

    given = ["--algorithm", "grpo", "--hf-checkpoint", llama, "--prompt-data", sums, "--label-key", "label"]
    given += ["--rm-type", "exact", "--rollout-engine", "sglang", "--sglang-url", ",".join(s.url for s in servers)]
    given += ["--sglang-health-interval", "1", "--sglang-health-timeout", TIMEOUT, "--num-rollout", ROLLOUTS]
    given += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "32"]
    thread = threading.Thread(target=stop_in_the_middle)
    thread.start()
    try:
        done = stacx("train", *given, "--lr", "1e-4", "--output-dir", tmp_path / "run")
    finally:
        thread.join()
        os.killpg(group, signal.SIGCONT)
    assert done.code == 0, done.err
    assert 1 < time.monotonic() - stopped[0] < 1 + TIMEOUT + SLACK
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(lines) == ROLLOUTS
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert max(line["train/train_rollout_abs_diff"] for line in lines) < 1e-4
    assert model_info(servers[0].url)["weight_version"].startswith(f"{ROLLOUTS}-")
    told = model_info(servers[1].url, SLACK)
    assert int(told["weight_version"].partition("-")[0]) < ROLLOUTS
    assert (Path(told["model_path"]) / "config.json").exists()
