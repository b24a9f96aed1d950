"""Runs on processes of Ray: the metrics are those of one process, step by step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

TWO = ["--backend", "megatron", "--num-gpus-per-node", "2"]
TP = ["--backend", "megatron", "--tensor-model-parallel-size", "2"]
REWARD = ["--rm-type", "fatal_rewards:digits", "--n-samples-per-prompt", "4"]


@pytest.fixture
def agree(cluster: None, train: Any, metrics: Any, rewards: Path, tmp_path: Path) -> Any:
    """Run a recipe in this process and spread, and compare every metric of every step."""

    def compare(algorithm: str, flags: Sequence[str | Path], spread: Sequence[str], tolerance: float = 1e-3) -> None:
        alone = train(algorithm, *flags, output="alone")
        assert alone.code == 0, alone.err
        many = train(algorithm, *flags, *spread, output="many")
        assert many.code == 0, many.err
        for one, other in zip(metrics(tmp_path / "alone"), metrics(tmp_path / "many"), strict=True):
            assert other == pytest.approx(one, rel=tolerance, abs=tolerance)

    return compare


def test_ppo_on_four_processes_is_ppo_on_one_for_ten_steps(agree: Any) -> None:
    agree("ppo", [*REWARD, "--num-rollout", "10", "--critic-lr", "2e-3"], TP)


def test_grpo_with_a_reference(agree: Any, checkpoint: Path) -> None:
    reference = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", checkpoint]
    agree("grpo", [*REWARD, *reference, "--num-rollout", "3"], [*TWO, "--use-distributed-optimizer"])


def test_two_roles_of_one_pool_with_a_plugins_channel_between_them(agree: Any, tmp_path: Path) -> None:
    hinted = tmp_path / "hinted.jsonl"
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(3) for b in range(4)]
    rows = [{"prompt": prompt, "label": result, "hint": f"{result}={result}="} for prompt, result in sums]
    hinted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--prompt-data", hinted, "--privileged-key", "hint", "--ema-decay", "0.5", "--num-rollout", "3"]
    agree("self_distill", flags, [*TP, "--offload-roles"])


def test_roles_that_take_turns_change_no_digit(
    cluster: None, train: Any, metrics: Any, rewards: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """The policy and its reference, which share a process."""
    flags = [*REWARD, "--num-rollout", "3", "--ref-load", checkpoint, "--kl-coef", "0.1", "--backend", "megatron"]
    for output, more in (("together", []), ("turns", ["--offload-roles"])):
        done = train("ppo", *flags, *more, output=output)
        assert done.code == 0, done.err
    assert "--offload-roles" in (tmp_path / "turns/workers/policy-0.log").read_text()
    assert "--offload-roles" not in (tmp_path / "turns/workers/critic-0.log").read_text()
    assert metrics(tmp_path / "turns") == metrics(tmp_path / "together")
    for role in ("policy", "critic"):
        files = [tmp_path / run / f"checkpoints/latest/{role}/model.safetensors" for run in ("turns", "together")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_dpo_with_its_reference_in_the_policys_pool(agree: Any, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    sums = [(a, b) for a in range(4) for b in range(4)]
    rows = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": f"{(a + b + 1) % 10}1"} for a, b in sums]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--prompt-data", pairs, "--num-rollout", "2", "--rollout-batch-size", "8"]
    agree("dpo", flags, [*TWO, "--context-parallel-size", "2"])


def test_experts_of_both_processes_reach_the_engine(agree: Any, checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "experts"
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **{"vocab_size": 14, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": None},
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1},
        **{"initializer_range": 0.2, "eos_token_id": 0},
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    flags = [*REWARD, "--num-rollout", "3", "--hf-checkpoint", folder]
    agree("grpo", flags, [*TWO, "--expert-model-parallel-size", "2"])


def test_the_torch_backend_with_a_process_per_pool(agree: Any, checkpoint: Path) -> None:
    flags = [*REWARD, "--num-rollout", "3", "--ref-load", checkpoint, "--kl-coef", "0.1"]
    agree("ppo", flags, ["--role-workers", "ray"], tolerance=1e-6)
