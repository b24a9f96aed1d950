"""Self-distillation through the command: the privileged prompt, the moving average, and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stacx_core.backends.model import load_tokenizer

TEACHER = "teacher/model.safetensors"
POLICY = "policy/model.safetensors"


@pytest.fixture
def hinted(tmp_path: Path) -> Path:
    """Additions whose rows also hold a hint, and the result."""
    path = tmp_path / "hinted.jsonl"
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(3) for b in range(4)]
    rows = [{"prompt": prompt, "label": result, "hint": f"{result}={result}="} for prompt, result in sums]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(train: Any, hinted: Path) -> Callable[..., Any]:
    """`stacx train --algorithm self_distill` with the hint for the teacher."""

    def go(*flags: str, **options: Any) -> Any:
        return train("self_distill", "--prompt-data", hinted, "--privileged-key", "hint", *flags, **options)

    return go


def latest(tmp_path: Path, output: str = "run") -> Path:
    return tmp_path / output / "checkpoints" / "latest"


@pytest.mark.parametrize("mode", ["k3_sample", "topk", "gkd"])
def test_the_policy_learns_what_the_hint_tells(run: Any, metrics: Any, tmp_path: Path, mode: str) -> None:
    flags = ["--distill-kl-mode", mode, "--num-rollout", "30", "--rollout-batch-size", "12", "--lr", "5e-3"]
    assert run(*flags, "--n-samples-per-prompt", "2", "--ema-decay", "1", "--check-loss-invariance").code == 0
    lines = metrics(tmp_path / "run")
    assert lines[0]["train/loss"] > 0.01, "the teacher is the policy, but for the hint"
    first, last = (sum(line["train/reverse_kl"] for line in part) for part in (lines[:10], lines[-10:]))
    assert last < first


def test_no_other_teacher_can_be_named(train: Any) -> None:
    done = train("self_distill", "--privileged-key", "label", "--num-rollout", "1", "--teacher-failure", "drop")
    assert done.code == 2
    assert "--teacher-failure has no effect on self_distill" in done.err


def test_the_prompt_itself_is_no_privilege(train: Any) -> None:
    done = train("self_distill", "--privileged-key", "prompt", "--num-rollout", "1")
    assert done.code == 2
    assert "--privileged-key prompt is the prompt itself" in done.err


def test_the_teacher_scores_the_response_behind_the_longer_prompt(
    run: Any, checkpoint: Path, metrics: Any, tmp_path: Path
) -> None:
    """One greedy token after "2=2=", an empty line and "1+1=": the run's loss is K3 of two plain forward passes."""
    row = {"prompt": "1+1=", "hint": "2=2="}
    (tmp_path / "one.jsonl").write_text(json.dumps(row) + "\n")
    flags = ["--prompt-data", str(tmp_path / "one.jsonl"), "--num-rollout", "1", "--rollout-batch-size", "1"]
    flags += ["--rollout-max-response-len", "1", "--rollout-top-k", "1"]
    tokenizer = load_tokenizer(str(checkpoint))
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    plain, told = (tokenizer.encode(text, add_special_tokens=False) for text in ("1+1=", "2=2=\n\n1+1="))
    with torch.no_grad():
        student, teacher = (model(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for ids in (plain, told))
    token = int(student.argmax())
    expected = float(torch.expm1(teacher[token] - student[token]) - (teacher[token] - student[token]))
    assert run(*flags, "--label-key", "hint").code == 0
    (line,) = metrics(tmp_path / "run")
    assert line["train/loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("decay", "interval"), [(0.9, 1), (0.5, 2), (0.0, 1)])
def test_the_teacher_follows_by_a_moving_average(
    run: Any, checkpoint: Path, tmp_path: Path, decay: float, interval: int
) -> None:
    """Two rollouts, whose policies are both saved, against the average worked out here."""
    flags = ["--num-rollout", "2", "--save-interval", "1", "--ema-decay", str(decay), "--ema-interval", str(interval)]
    assert run(*flags).code == 0
    expected = load_file(checkpoint / "model.safetensors")
    for rollout in (1, 2):
        policy = load_file(tmp_path / "run" / "checkpoints" / f"rollout_00000{rollout}" / POLICY)
        if rollout % interval == 0:
            expected = {name: decay * value + (1 - decay) * policy[name] for name, value in expected.items()}
    teacher = load_file(latest(tmp_path) / TEACHER)
    assert teacher.keys() == expected.keys()
    for name, value in teacher.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)


def test_a_decay_of_one_keeps_the_teacher_as_it_began(run: Any, checkpoint: Path, tmp_path: Path) -> None:
    assert run("--num-rollout", "2", "--ema-decay", "1").code == 0
    teacher, began = load_file(latest(tmp_path) / TEACHER), load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(teacher[name], began[name]) for name in began)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_resumed_run_equals_an_unbroken_one_to_the_last_bit(
    run: Any, metrics: Any, tmp_path: Path, dtype: str
) -> None:
    flags = ["--distill-kl-mode", "topk", "--ema-decay", "0.9", "--ema-interval", "3", "--dtype", dtype]
    assert run(*flags, "--num-rollout", "6", output="whole").code == 0
    for rollouts, resume in (("2", []), ("4", ["--resume"]), ("6", ["--resume"])):
        assert run(*flags, "--num-rollout", rollouts, *resume, output="parts").code == 0
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    for file in (TEACHER, POLICY):
        whole, parts = load_file(latest(tmp_path, "whole") / file), load_file(latest(tmp_path, "parts") / file)
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert load_file(latest(tmp_path, "whole") / TEACHER)["model.norm.weight"].dtype == torch.float32


def test_a_row_without_a_hint_is_named(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "partly.jsonl"
    path.write_text('{"prompt": "1+1=", "label": "2", "hint": "2"}\n{"prompt": "1+2=", "label": "3"}\n')
    done = run("--prompt-data", str(path), "--num-rollout", "1")
    assert done.code == 2
    assert "partly.jsonl" in done.err
    assert "no text in 'hint' (--privileged-key)" in done.err


def test_a_prompt_too_long_with_its_hint_is_left_out(run: Any, metrics: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": "1+1=", "label": "2", "hint": hint} for hint in ("2", "1+1=" * 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("--prompt-data", str(path), "--num-rollout", "1").code == 0
    assert metrics(tmp_path / "run")[0]["rollout/dropped_rows"] == 1


def test_the_label_may_be_the_privilege(run: Any) -> None:
    assert run("--privileged-key", "label", "--num-rollout", "1").code == 0


def test_query_is_for_teachers_outside_the_recipe(run: Any) -> None:
    done = run("--distill-kl-mode", "topk", "--distill-missing", "query", "--num-rollout", "1")
    assert done.code == 2
    assert "takes floor or tail" in done.err
