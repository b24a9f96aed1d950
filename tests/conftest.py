"""What many tests share: a tiny checkpoint with its tokenizer, prompts for it, and the arguments of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args

CHARACTERS = "0123456789+="
END = 0
"""Id of the end token."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers whose 4 heads share 2 key heads, and a tokenizer of one token per character."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Write the character tokenizer into a folder."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(["<end>", "<unknown>", *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>"
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of twelve additions with one digit each, and their results."""
    path = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    rows = ({"prompt": f"{a}+{b}=", "label": str(a + b)} for a in range(3) for b in range(4))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def host_args() -> Callable[..., Args]:
    """The host's default arguments with some of them set."""

    def build(**given: Any) -> Args:
        return Args({**{knob.name: knob.default for knob in HOST_KNOBS}, **given})

    return build
