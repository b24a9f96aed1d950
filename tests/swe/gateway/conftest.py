"""A tiny chat model, and gateways in front of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from gateway_parts import Answer, chat_tokenizer, send
from stacx_core.rollout.engine import SamplingParams
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.settings import GatewaySettings


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return chat_tokenizer()


@pytest.fixture(scope="session")
def chat_checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A random model of 2 layers for the tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("chat")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerBase) -> Iterator[Callable[..., Gateway]]:
    """Start gateways; all are closed in the end."""
    opened: list[Gateway] = []

    def start(
        engine: Any, *others: Any, max_new_tokens: int = 24, limit: int = 2048, speaks: Any = tokenizer, **given: Any
    ) -> Gateway:
        settings = GatewaySettings("policy", SamplingParams(max_new_tokens), limit, **given)
        opened.append(Gateway(settings, speaks, engine, *others))
        return opened[-1]

    yield start
    for gateway in opened:
        gateway.close()


@pytest.fixture
def chat() -> Callable[..., Answer]:
    """Ask a session of a gateway for a completion."""

    def ask(gateway: Gateway, session: Any, messages: Any, **fields: Any) -> Answer:
        body = {"model": "policy", "messages": messages, **fields}
        return send(f"{session.base_url}/chat/completions", gateway.key, body)

    return ask
