"""Runs on a real server in which more is begun than is trained, and what was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stacx_core.rollout.sglang.launch import LaunchPlan

TOLERANCE = 1e-4
"""Nats per token."""

REWARD = """
def spaces(sample):
    return sample.response.count(" ") / (1 + len(sample.response))
"""


@pytest.fixture
def arguments(launch_plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """GRPO on responses of very unequal length: of eight groups begun, the first four to end are trained."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{n} and {n * n}"}) + "\n" for n in range(40)))
    (tmp_path / "space_reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = launch_plan
    return [
        *("train", "--algorithm", "grpo", "--hf-checkpoint", plan.model, "--prompt-data", prompts),
        *("--rm-type", "space_reward:spaces", "--output-dir", tmp_path / "run", "--num-threads", 1),
        *("--rollout-engine", "sglang", "--sglang-launch", 1, "--sglang-python", plan.python),
        *("--sglang-module", plan.module, "--sglang-args", " ".join(plan.arguments)),
        *("--rollout-batch-size", 4, "--over-sampling-batch-size", 8, "--n-samples-per-prompt", 2),
        *("--rollout-max-response-len", 200, "--partial-rollout", "--save-interval", 1),
    ]


def test_responses_go_on_under_newer_weights(stacx: Any, arguments: list[Any], metrics: Any, tmp_path: Path) -> None:
    """At a learning rate of 0 the weights of every version are the same, and so are all log-probs."""
    given = [*arguments, "--lr", 0, "--recompute-log-probs", "--use-tis"]
    assert stacx(*given, "--num-rollout", 3).code == 0
    state = json.loads((tmp_path / "run/checkpoints/latest/trainer.json").read_text())
    left = state["roll_in"]["leftovers"]
    assert len(left) == 4
    assert any(answer["finish"] == "abort" and answer["ids"] for group in left for answer in group["answers"])
    masked = ("--resume", "--mask-offpolicy-in-partial-rollout")
    assert stacx(*given, "--num-rollout", 5, *masked).code == 0
    rows = metrics(tmp_path / "run")
    assert [row["rollout"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["rollout/staleness"] == rows[0]["rollout/partial_responses"] == 0
    for row in rows[1:]:
        assert row["rollout/partial_responses"] > 0
        assert row["rollout/staleness"] >= 1
    for row in rows:
        assert row["rollout/aborted_responses"] > 0
        assert row["train/train_rollout_abs_diff"] < TOLERANCE
        older = row["rollout/offpolicy_token_frac"] * row["rollout/response_tokens"]
        trained = row["rollout/response_tokens"] - (older if row["rollout"] > 3 else 0)
        assert row["rollout/loss_tokens"] == pytest.approx(trained)
