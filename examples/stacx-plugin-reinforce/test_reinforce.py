"""What a package of one algorithm tests: its numbers on cases small enough for paper, and that it trains."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stacx_plugin_reinforce import ReinforceSpecialization, compute_advantages
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core import Args, Sample
from stacx_core.cli import main
from stacx_core.testing import RecipeConformance


class TestReinforce(RecipeConformance):
    recipe = "reinforce"


@pytest.mark.parametrize(("baseline", "expected"), [("batch_mean", [-0.5, 0.5]), ("none", [0.0, 1.0])])
def test_advantages_are_taken_over_the_whole_batch(baseline: str, expected: list[float]) -> None:
    """The first two samples are parts of one rollout, which counts once; the last one was removed."""
    batch: dict[str, Any] = {
        "rewards": [0.0, 0.0, 1.0, float("nan")],
        "rollout_ids": [4, 4, 5, 6],
        "removed": [0, 0, 0, 1],
        "response_lengths": [2, 1, 1, 1],
    }
    metrics = compute_advantages(batch, Args.of(reinforce_baseline=baseline))
    assert metrics == {"reward_mean": 0.5}
    assert batch["advantages"][0].tolist() == [expected[0]] * 2
    assert batch["advantages"][2].tolist() == [expected[1]]


def test_the_loss_of_uniform_logits() -> None:
    """Over V = 4 equal logits each log-prob is -log 4, so the loss is (A_0 + A_1) log 4 = log 4."""
    batch = {
        "tokens": torch.tensor([[0, 1, 2, 3, 1, 2]]),
        "total_lengths": [3, 3],
        "response_lengths": [2, 1],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        "advantages": [torch.tensor([-0.5, float("nan")]), torch.tensor([1.5])],
    }
    args = Args.of(rollout_temperature=1.0, log_probs_chunk_size=2)
    logits = torch.zeros(6, 4, requires_grad=True)
    loss, metrics = ReinforceSpecialization(args).compute_loss(logits, batch, torch.sum)
    torch.testing.assert_close(loss.detach(), torch.log(torch.tensor(4.0)))
    assert metrics["reinforce_loss"] == loss
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1].tolist() == [0.0] * 4


def prefer_b(sample: Sample) -> float:
    """1 for a response that starts with the word b."""
    return float(sample.response.startswith("b"))


def make_model(folder: Path) -> None:
    """A Llama of one layer that knows four words."""
    tokenizer = Tokenizer(WordLevel({"<end>": 0, "a": 1, "b": 2, "c": 3}, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def test_the_command_trains_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 20 updates the model learns to begin with the word that is rewarded."""
    monkeypatch.setattr("stacx_core.plugins._current", None)
    monkeypatch.setitem(sys.modules, "reward_of_this_test", sys.modules[__name__])
    make_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "c"}\n', encoding="utf-8")
    options = {
        "--algorithm": "reinforce",
        "--hf-checkpoint": tmp_path / "model",
        "--prompt-data": tmp_path / "prompts.jsonl",
        "--rm-type": "reward_of_this_test:prefer_b",
        "--rollout-batch-size": 8,
        "--n-samples-per-prompt": 4,
        "--rollout-max-response-len": 2,
        "--num-rollout": 20,
        "--lr": 0.02,
        "--seed": 0,
        "--output-dir": tmp_path / "run",
    }
    assert main(["train", *(str(part) for option in options.items() for part in option)]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [json.loads(line)["rollout/reward_mean"] for line in lines]
    assert rewards[0] < 0.6
    assert rewards[-1] > 0.9
