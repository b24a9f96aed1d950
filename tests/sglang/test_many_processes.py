"""A policy that two processes of Ray share reaches a real server, by every way that weights travel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stacx_core
from stacx_core.rollout.sglang.launch import model_info

pytest.importorskip("ray", reason="ray is not installed: pip install 'stacx-core[ray]'")
pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'stacx-core[megatron]'")

ROLLOUTS = 3
DEADLINE = 240.0
"""Seconds that a run may take on a busy machine."""

LAYOUTS = {
    "disk": ["--tensor-model-parallel-size", "2"],
    "tensor": ["--pipeline-model-parallel-size", "2"],
    "distributed": ["--num-gpus-per-node", "2", "--use-distributed-optimizer"],
}
"""How weights travel -> how the two processes share them."""

REWARD = "def different(sample):\n    return len(set(sample.response)) / 10\n"


@pytest.fixture
def run(llama: Path, sums: Path, traces: Any, tmp_path: Path) -> Callable[..., str]:
    """`stacx train` with the policy on two processes; returns what it wrote to its standard error."""
    (tmp_path / "rewards.py").write_text(REWARD)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
    path = os.pathsep.join([str(tmp_path), str(Path(stacx_core.__file__).parents[1]), *sys.path])

    def train(*flags: str) -> str:
        command = [sys.executable, "-m", "stacx_core", "train", "--algorithm", "grpo", "--hf-checkpoint", str(llama)]
        command += ["--prompt-data", str(sums), "--label-key", "label", "--rm-type", "rewards:different"]
        command += ["--output-dir", str(tmp_path / "run"), "--num-rollout", str(ROLLOUTS), "--lr", "1e-2"]
        command += ["--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "16"]
        command += ["--backend", "megatron", "--role-workers", "ray", "--rollout-engine", "sglang", *flags]
        environment = {**clean, "PYTHONPATH": path}
        try:
            done = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE
            )
        except subprocess.TimeoutExpired:
            for pid in set(traces.processes()) - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
            raise
        assert done.returncode == 0, done.stderr
        return done.stderr

    return train


@pytest.mark.parametrize("mode", LAYOUTS)
def test_the_server_has_the_weights_of_both_processes_at_every_version(
    run: Callable[..., str], metrics: Any, sglang_server: Callable[..., Any], llama: Path, tmp_path: Path, mode: str
) -> None:
    """Buckets of 20 kB, so that there are several; with the weights of the version before the gap would be near 0.5."""
    url = sglang_server(llama, number=3).url
    run("--sglang-url", url, "--update-weight-mode", mode, "--update-weight-buffer-size", "20000", *LAYOUTS[mode])
    lines = metrics(tmp_path / "run")
    assert [line["rollout"] for line in lines] == list(range(1, ROLLOUTS + 1))
    assert all(line["train/grad_norm"] > 0 for line in lines)
    assert max(line["train/train_rollout_abs_diff"] for line in lines) < 1e-4
    assert model_info(url)["weight_version"].startswith(f"{ROLLOUTS}-")
