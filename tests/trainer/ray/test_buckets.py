"""Weights cut into buckets and put back into a model of Transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from stacx_core.backends.weights import checkpoint_tensors
from stacx_core.trainer.ray.buckets import Receiver, buckets

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}


def dense() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def tied_bf16() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).to(torch.bfloat16)


def critic() -> nn.Module:
    return Qwen3ForSequenceClassification(Qwen3Config(**SIZES, num_labels=1))


def sparse() -> nn.Module:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "decoder_sparse_step": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts))


@pytest.mark.parametrize("make", [dense, tied_bf16, critic, sparse])
@pytest.mark.parametrize("most", [1, 5000, 10**9])
def test_a_model_has_exactly_the_weights_that_were_sent(make: type[nn.Module], most: int) -> None:
    torch.manual_seed(0)
    trained = make()
    served = copy.deepcopy(trained)
    with torch.no_grad():
        for parameter in served.parameters():
            parameter.fill_(float("nan"))
    receiver = Receiver(served)
    for bucket in buckets(checkpoint_tensors(trained).items(), most):
        assert len(bucket) == 1 or sum(piece.data.nbytes for piece in bucket) <= most
        receiver.take(bucket)
    expected = trained.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in served.state_dict().items())
