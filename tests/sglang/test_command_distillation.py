"""Distillation through the command from a real server whose model is larger than the student."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GREEDY = ("--rollout-top-k", "1")
"""Student and teacher then act alike wherever they run."""


@pytest.fixture(scope="module")
def teachers(large: Path, sglang_server: Callable[..., Any]) -> dict[str, tuple[str, ...]]:
    """The same model in this process and on a server."""
    return {
        "model": ("--teacher", "model", "--teacher-load", str(large)),
        "sglang": ("--teacher", "sglang", "--teacher-url", sglang_server(large).url),
    }


@pytest.fixture
def distilled(
    teachers: dict[str, tuple[str, ...]], llama: Path, stacx: Any, metrics: Any, tmp_path: Path
) -> Callable[..., list[list[dict[str, float]]]]:
    """The metrics of three rollouts, with the teacher in this process and on a server."""

    def run(algorithm: str, *flags: str | Path) -> list[list[dict[str, float]]]:
        found = []
        for name, teacher in teachers.items():
            output = tmp_path / name
            given = ["train", "--algorithm", algorithm, "--hf-checkpoint", llama, "--output-dir", output]
            given += ["--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "16"]
            done = stacx(*given, "--num-rollout", "3", "--lr", "1e-3", *teacher, *flags)
            assert done.code == 0, done.err
            found.append(metrics(output))
        return found

    return run


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts to go on with."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{a} and {a + 1} are "}) + "\n" for a in range(8)))
    return path


def check_alike(local: list[dict[str, float]], served: list[dict[str, float]]) -> None:
    """Both teachers say the same, to 1e-4, and what follows from it stays close."""
    assert [sorted(line) for line in served] == [sorted(line) for line in local]
    assert all(math.isfinite(value) for line in served for value in line.values())
    for theirs, ours in zip(served, local, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-4, rel=1e-3)


@pytest.mark.parametrize(
    "mode",
    [
        ("--distill-kl-mode", "k3_sample"),
        ("--distill-kl-mode", "topk"),
        ("--distill-kl-mode", "topk", "--distill-missing", "query"),
    ],
    ids=" ".join,
)
def test_on_policy_distillation(distilled: Any, prompts: Path, mode: tuple[str, ...]) -> None:
    local, served = distilled("opd", "--prompt-data", prompts, *mode)
    check_alike(local, served)
    assert [line["rollout/teacher_failed"] for line in served] == [0, 0, 0]


def test_a_mixture_with_a_teacher_that_acts_and_scores(distilled: Any, games: Path) -> None:
    """The teacher acts in all turns of the first rollout, in half of the second, and in none of the third."""
    flags = ["--environment", "games:Digits", "--dagger-beta-decay", "2", *GREEDY]
    local, served = distilled("mixture_dagger_opd", *flags)
    check_alike(local, served)
    assert [line["rollout/beta"] for line in served] == [1, 0.5, 0]
    assert served[0]["train/teacher_action_frac"] == 1
    assert served[2]["train/teacher_action_frac"] == 0
