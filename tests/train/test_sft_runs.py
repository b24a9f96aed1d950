"""`stacx train --algorithm sft` on the tiny checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stacx_core.knobs import Args
from stacx_core.specialization import CausalDecoderSpecialization


def test_the_loss_of_a_prompt_and_an_answer_with_its_end_token() -> None:
    """Log-probs -0.1, -0.2, -0.4, -0.8 of three answer tokens and the end token: 1.5 / 4, prompt not counted."""
    log_probs = torch.tensor([-0.1, -0.2, -0.4, -0.8], dtype=torch.float64)
    logits = torch.stack([log_probs, torch.log1p(-log_probs.exp())], dim=1)
    batch = {
        "tokens": torch.tensor([[1, 0, 0, 0, 0]]),
        "total_lengths": [5],
        "response_lengths": [4],
        "loss_masks": [torch.ones(4, dtype=torch.int32)],
    }
    args = Args.of(rollout_temperature=0.5, log_probs_chunk_size=3)
    output = torch.cat([logits, torch.full((1, 2), 9.0, dtype=torch.float64)])
    loss, metrics = CausalDecoderSpecialization(args).compute_loss(output, batch, lambda x: x.mean())
    assert loss.item() == pytest.approx(0.375)
    assert (metrics["nll"][0] / metrics["nll"][1]).item() == pytest.approx(0.375)


def test_the_first_loss_is_that_of_the_checkpoint(
    train: Any, metrics: Any, checkpoint: Path, sums: Path, tmp_path: Path
) -> None:
    """Each row alone: the mean over the label and one end token; then the mean over the rows."""
    flags = ["--rollout-batch-size", "12", "--num-rollout", "1"]
    assert train("sft", *flags).code == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    losses = []
    for row in map(json.loads, sums.read_text().splitlines()):
        ids = [*tokenizer.encode(row["prompt"] + row["label"]), tokenizer.eos_token_id]
        answer = len(row["label"]) + 1
        with torch.no_grad():
            log_probs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        losses.append(-sum(log_probs[-answer - 1 + t, ids[len(ids) - answer + t]] for t in range(answer)) / answer)
    first = metrics(tmp_path / "run")[0]
    assert first["train/loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    assert first["rollout/loss_tokens"] == first["rollout/response_tokens"] == 24
    assert first["train/ppl"] == pytest.approx(math.exp(first["train/nll"]))


def test_the_answers_are_learnt(train: Any, metrics: Any, sums: Path, tmp_path: Path) -> None:
    flags = ["--rollout-batch-size", "12", "--num-rollout", "80", "--lr", "1e-2", "--lr-decay-style", "linear"]
    done = train("sft", *flags, "--eval-prompt-data", sums, "--rm-type", "exact")
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert lines[0]["rollout"] == 0
    assert lines[0]["eval/reward_mean"] < 0.5
    assert lines[-1]["eval/reward_mean"] == 1
    assert lines[-1]["train/loss"] < 0.1
    assert "rollout 80/80  loss" in done.err


def test_rows_whose_response_is_cut_off_are_left_out_and_counted(train: Any, metrics: Any, tmp_path: Path) -> None:
    data = tmp_path / "long.jsonl"
    data.write_text("".join(json.dumps({"prompt": p, "label": "2"}) + "\n" for p in ("1+1=", "1+1+1+1+1=", "2=")))
    flags = ["--prompt-data", data, "--num-rollout", "2", "--max-sequence-len"]
    assert train("sft", *flags, "6").code == 0
    assert [line["rollout/dropped_rows"] for line in metrics(tmp_path / "run")] == [1, 1]
    refused = train("sft", *flags, "2", output="none")
    assert refused.code == 2
    assert "all 3 rows lose their response to the limit of 2 tokens" in refused.err
    assert not (tmp_path / "none").exists()


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_nothing_of_it(
    train: Any, metrics: Any, tmp_path: Path
) -> None:
    done = train("sft", "--num-rollout", "4", "--save-interval", "1", "--lr", "1e30")
    assert done.code == 4
    assert "role 'policy': the loss of samples" in done.err
    assert [line["rollout"] for line in metrics(tmp_path / "run")] == [1]
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve().name == "rollout_000001"


def test_two_updates_a_rollout_follow_the_schedule(train: Any, metrics: Any, tmp_path: Path) -> None:
    """100 updates from 1e-5 to 0: update 40, the first after a resume at rollout 20, has 6.0e-6."""
    flags = ["--num-steps-per-rollout", "2", "--lr", "1e-5", "--lr-decay-style", "linear", "--lr-decay-iters", "100"]
    assert train("sft", *flags, "--num-rollout", "20").code == 0
    assert train("sft", *flags, "--num-rollout", "21", "--resume").code == 0
    lines = metrics(tmp_path / "run")
    assert lines[20]["train/lr"] == pytest.approx(6.0e-6)
    assert lines[20]["train/updates"] == 42


def test_epochs_of_one_rollout_are_updates_on_the_same_rows(train: Any, metrics: Any, tmp_path: Path) -> None:
    """All twelve rows three times over: one rollout gone through thrice, or three rollouts of all of them."""
    flags = ["--rollout-batch-size", "12", "--lr", "1e-2", "--lr-decay-style", "linear"]
    assert train("sft", *flags, "--num-rollout", "3").code == 0
    assert train("sft", *flags, "--num-rollout", "1", "--epochs-per-rollout", "3", output="epochs").code == 0
    three, (once,) = metrics(tmp_path / "run"), metrics(tmp_path / "epochs")
    assert once["train/updates"] == 3
    assert once["train/loss"] == pytest.approx(sum(line["train/loss"] for line in three) / 3, rel=1e-5)
    assert three[2]["train/loss"] < three[1]["train/loss"] < three[0]["train/loss"]


def test_the_saved_model_loads_into_transformers(train: Any, tmp_path: Path) -> None:
    assert train("sft", "--num-rollout", "1").code == 0
    folder = tmp_path / "run" / "checkpoints" / "latest" / "policy"
    assert AutoModelForCausalLM.from_pretrained(folder).config.eos_token_id == 0
    assert AutoTokenizer.from_pretrained(folder).encode("1+1=") == [3, 12, 3, 13]
