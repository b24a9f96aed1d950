"""Critic, reference and reward model must fit the policy; what does not is refused before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from stacx_core.backends.model import load_model

RUN = ["--rm-type", "fatal_rewards:digits", "--num-rollout", "2"]
REFERENCE = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load"]


@pytest.fixture
def other(checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """The tiny Llama with another vocabulary size or context, and random weights."""

    def build(**changes: int) -> Path:
        folder = tmp_path / "other"
        LlamaForCausalLM(LlamaConfig.from_pretrained(checkpoint, **changes)).save_pretrained(folder)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
        return folder

    return build


def refused(done: Any, message: str, folder: Path) -> None:
    assert done.code == 2
    assert message in done.err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("recipe", "flags", "size"),
    [("ppo", ["--critic-load"], 13), ("grpo", REFERENCE, 20), ("grpo", REFERENCE, 13)],
)
def test_a_vocabulary_that_does_not_fit(
    train: Any, rewards: Path, other: Any, tmp_path: Path, recipe: str, flags: list[str], size: int
) -> None:
    done = train(recipe, *RUN, *flags, other(vocab_size=size))
    refused(done, f"has a vocabulary of {size} tokens and the policy one of 14", tmp_path / "run")


def test_the_reference_of_dpo_needs_the_same_vocabulary(train: Any, other: Any, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"prompt": "1+1=", "chosen": "2", "rejected": "3"}) + "\n")
    done = train("dpo", "--prompt-data", data, "--num-rollout", "1", "--ref-load", other(vocab_size=20))
    refused(done, "has a vocabulary of 20 tokens and the policy one of 14; it must have the same", tmp_path / "run")


def test_a_critic_may_know_more_tokens(train: Any, rewards: Path, other: Any) -> None:
    done = train("ppo", *RUN, "--critic-load", other(vocab_size=20))
    assert done.code == 0, done.err


@pytest.mark.parametrize("length", [7, 8])
def test_the_shortest_context_limits_the_run(
    train: Any, rewards: Path, other: Any, tmp_path: Path, length: int
) -> None:
    """Prompts of 4 tokens and responses of up to 4."""
    done = train("ppo", *RUN, "--critic-load", other(max_position_embeddings=length))
    if length == 8:
        assert done.code == 0, done.err
    else:
        message = "no prompt leaves room for --rollout-max-response-len 4 within 7 tokens"
        refused(done, message, tmp_path / "run")


def test_an_evaluation_keeps_to_the_context_of_its_reward_model(
    train: Any, rewards: Path, other: Any, sums: Path, tmp_path: Path
) -> None:
    flags = ["--eval-prompt-data", sums, "--eval-rm-type", "model", "--rm-load", other(max_position_embeddings=7)]
    refused(train("ppo", *RUN, *flags), "leaves no room for 4 more within 7", tmp_path / "run")


def test_a_reward_model_without_trained_head_is_refused(train: Any, checkpoint: Path) -> None:
    done = train("grpo", "--rm-type", "model", "--rm-load", checkpoint, "--num-rollout", "1")
    assert done.code == 2
    assert "has no trained scalar head" in done.err
    assert "reward_model" in done.err


def test_only_a_reward_needs_a_trained_head(checkpoint: Path) -> None:
    model: Any = load_model(str(checkpoint), torch.float32, torch.device("cpu"), "scalar")
    assert not model.score.weight.any()


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("ppo", [], "--ref-load has no effect without --use-kl-loss or --kl-coef"),
        ("grpo", ["--n-samples-per-prompt", "2"], "--ref-load has no effect without --use-kl-loss"),
        ("sft", [], "--ref-load has no effect on recipe 'sft'"),
    ],
)
def test_a_reference_that_nothing_reads(
    train: Any, rewards: Path, checkpoint: Path, tmp_path: Path, recipe: str, flags: list[str], message: str
) -> None:
    rewarded = RUN[2:] if recipe == "sft" else RUN
    refused(train(recipe, *rewarded, *flags, "--ref-load", checkpoint), message, tmp_path / "run")


def test_a_critic_phase_as_long_as_the_run(train: Any, rewards: Path, tmp_path: Path) -> None:
    message = "--num-critic-only-steps 2 leaves none of 2 rollouts to train role 'policy'"
    refused(train("ppo", *RUN, "--num-critic-only-steps", "2"), message, tmp_path / "run")
