"""`stacx sample` of language models: whose recipe and weights it takes, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(train: Any, tmp_path: Path) -> Path:
    """The folder of a run of two rollouts."""
    done = train("grpo", "--num-rollout", "2", "--rm-type", "exact", "--n-samples-per-prompt", "2")
    assert done.code == 0, done.err
    return tmp_path / "run"


@pytest.fixture
def sample(stacx: Any, tmp_path: Path) -> Any:
    """`stacx sample`; the exit code, the error and the lines of the file."""

    def draw(*arguments: str | Path) -> tuple[int, str, list[dict[str, str]]]:
        output = tmp_path / "said.jsonl"
        output.unlink(missing_ok=True)
        done = stacx("sample", *arguments, "--output", output)
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
        return done.code, done.err, [json.loads(line) for line in lines]

    return draw


def test_a_run_its_checkpoint_and_its_model_are_sampled_alike(run: Path, sample: Any) -> None:
    """Recipe, prompts and response length are the run's, wherever in it one points."""
    whole = sample(run, "--count", "14")
    assert (whole[0], len(whole[2])) == (0, 14), whole[1]
    prompts = [line["prompt"] for line in whole[2]]
    assert len(set(prompts)) == 12
    assert prompts[:2] == prompts[12:]  # There are twelve.
    assert all(set(line) == {"prompt", "response", "finish"} for line in whole[2])
    assert all(len(line["response"]) <= 4 for line in whole[2])
    for place in ("checkpoints/latest", "checkpoints/latest/policy"):
        assert sample(run / place, "--count", "14") == whole
    assert sample("--count", "14", run) == whole


def test_the_likeliest_tokens_are_those_of_the_engine(checkpoint: Path, sums: Path, sample: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = ["--algorithm", "grpo", "--prompt-data", sums, "--rollout-top-k", "1", "--rollout-max-response-len", "4"]
    code, error, lines = sample(checkpoint, *given, "--count", "3")
    assert code == 0, error
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    for line in lines:
        ids = tokenizer(line["prompt"], return_tensors="pt").input_ids
        with torch.no_grad():
            whole = model.generate(ids, do_sample=False, max_new_tokens=4, pad_token_id=0)
        assert line["response"] == tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)


def test_other_seeds_draw_other_responses(checkpoint: Path, sums: Path, sample: Any) -> None:
    given = [checkpoint, "--algorithm", "grpo", "--prompt-data", sums, "--rollout-max-response-len", "8"]
    first, again, other = (sample(*given, "--seed", seed)[2] for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_prompts_must_be_named(checkpoint: Path, sample: Any) -> None:
    code, error, _ = sample(checkpoint, "--algorithm", "grpo")
    assert (code, "name the prompts with --prompt-data" in error) == (2, True)


def test_the_output_must_be_a_file_in_a_folder(checkpoint: Path, sums: Path, stacx: Any, tmp_path: Path) -> None:
    given = ["sample", checkpoint, "--algorithm", "grpo", "--prompt-data", sums, "--output"]
    missing = stacx(*given, tmp_path / "nowhere" / "said.jsonl")
    assert (missing.code, f"there is no folder {tmp_path / 'nowhere'}" in missing.err) == (2, True)
    folder = stacx(*given, tmp_path)
    assert (folder.code, "is a directory" in folder.err) == (2, True)
    assert stacx("sample", tmp_path / "nowhere", "--output", tmp_path / "x").code == 2


def test_a_folder_without_a_model_is_an_error(sums: Path, sample: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, error, lines = sample(tmp_path / "empty", "--algorithm", "grpo", "--prompt-data", sums)
    assert (code, lines) == (2, [])
    assert "empty" in error
