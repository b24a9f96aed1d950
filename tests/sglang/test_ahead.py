"""Training while real servers generate: whose weights each token is by, and a server that is replaced meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import forward, load_model
from stacx_core.rollout.keeper import descendants
from stacx_core.rollout.sglang.launch import LaunchPlan
from stacx_core.rollout.sglang.policy import PolicyServers

ROLLOUTS = 5
PROMPTS = ["1+1=", "2+3=", "abc", "hello"]


@pytest.fixture
def flags(llama: Path, tmp_path: Path) -> list[str]:
    """Rollouts of long responses, one update ahead of the trainer, every one of which is kept as a checkpoint."""
    rows = (json.dumps({"prompt": prompt, "label": "2"}) + "\n" for prompt in PROMPTS)
    (tmp_path / "prompts.jsonl").write_text("".join(rows))
    (tmp_path / "lengths.py").write_text("def reward(sample):\n    return len(set(sample.response)) / 10\n")
    return [
        *("train", "--algorithm", "grpo", "--hf-checkpoint", str(llama), "--output-dir", str(tmp_path / "run")),
        *("--prompt-data", str(tmp_path / "prompts.jsonl"), "--label-key", "label", "--rm-type", "lengths:reward"),
        *("--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "120"),
        *("--num-rollout", str(ROLLOUTS), "--lr", "1e-2", "--save-interval", "1", "--keep-checkpoints", "9"),
        *("--rollout-engine", "sglang", "--max-staleness", "1", "--use-tis", "--num-threads", "1"),
    ]


def test_each_token_is_by_the_weights_of_its_label(
    stacx: Any,
    metrics: Any,
    flags: list[str],
    llama: Path,
    sglang_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights arrive in the middle of responses, whose later tokens are by the newer ones."""
    generated: list[tuple[list[int], Any]] = []

    def generate(engine: PolicyServers, requests: Any, params: Any) -> Any:
        groups = original(engine, requests, params)
        for request, group in zip(requests, groups, strict=True):
            generated.extend((list(request.prompt), answer) for answer in group)
        return groups

    original = PolicyServers.generate
    monkeypatch.setattr(PolicyServers, "generate", generate)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = stacx(*flags, "--sglang-url", sglang_server(llama, number=3).url)
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 1, 1, 1]
    assert any(len(set(answer.weight_versions)) == 2 for _, answer in generated)
    assert {version for _, answer in generated for version in answer.weight_versions} == set("01234")
    models = [load(llama)]
    models += [load(tmp_path / "run/checkpoints" / f"rollout_{n:06d}" / "policy") for n in range(1, ROLLOUTS)]
    for prompt, answer in generated:
        labels = torch.tensor([int(version) for version in answer.weight_versions])
        rows = torch.stack([log_probs(model, [*prompt, *answer.ids], len(answer.ids)) for model in models])
        own = rows[labels, torch.arange(len(answer.ids))]
        torch.testing.assert_close(torch.tensor(answer.log_probs), own, atol=2e-3, rtol=0)


def load(folder: Path) -> Any:
    return load_model(str(folder), torch.float32, torch.device("cpu"))


def log_probs(model: Any, ids: list[int], count: int) -> torch.Tensor:
    """Log-probs of the last ids."""
    layout = PackedLayout([len(ids)], torch.device("cpu"))
    with torch.no_grad():
        logits = forward(model, torch.tensor([ids]), torch.arange(len(ids))[None], layout)[0]
    return logits[-count - 1 : -1].log_softmax(-1)[range(count), ids[-count:]]


def test_the_only_server_is_replaced_while_the_trainer_trains(
    launch_plan: LaunchPlan, flags: list[str], metrics: Any, eventually: Any, tmp_path: Path
) -> None:
    """The new one is given the weights when the trainer waits for it; no rollout is lost, and none is too old."""
    command = [sys.executable, "-m", "stacx_core", *flags, "--num-rollout", "12", "--sglang-launch", "1"]
    command += ["--sglang-python", launch_plan.python, "--sglang-module", launch_plan.module]
    command += [f"--sglang-args={' '.join(launch_plan.arguments)}"]
    path = os.pathsep.join([str(tmp_path), *sys.path, os.environ["PYTHONPATH"]])
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=log)
    file = tmp_path / "run" / "metrics.jsonl"
    try:
        eventually(lambda: (file.exists() and len(file.read_text().splitlines()) >= 2) or run.poll(), 240)
        assert run.poll() is None, (tmp_path / "log").read_text()
        _, server, *_ = processes = list(descendants(run.pid))  # The first is its keeper.
        os.kill(server, signal.SIGKILL)
        assert run.wait(240) == 0, (tmp_path / "log").read_text()
    finally:
        run.kill()
        run.wait()
    assert "SGLang server 0 is back" in (tmp_path / "log").read_text()
    lines = metrics(tmp_path / "run")
    assert [line["rollout"] for line in lines] == list(range(1, 13))
    assert max(line["rollout/staleness"] for line in lines) <= 1
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
