"""Two-digit addition: a character tokenizer, an untrained Llama of 0.8 million parameters, and the prompts.

Every file is made from the seed, so that two machines train on the same task.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core.seeds import sub_seed

CHARACTERS = "0123456789+="
HELD_OUT = 500


def make_task(folder: Path, seed: int, demonstrations: int) -> None:
    """Write ``model/`` and ``train.jsonl``, its first rows as ``demonstrations.jsonl``, and ``held_out.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    make_model(tokenizer, seed).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    sums = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(sub_seed(seed, "task")).shuffle(sums)
    write_rows(folder / "held_out.jsonl", sums[:HELD_OUT])
    write_rows(folder / "train.jsonl", sums[HELD_OUT:])
    write_rows(folder / "demonstrations.jsonl", sums[HELD_OUT : HELD_OUT + demonstrations])


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, and an end token."""
    vocabulary = {token: index for index, token in enumerate(["<end>", "<unknown>", *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>")


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of 4 layers and width 128, randomly initialised."""
    torch.manual_seed(sub_seed(seed, "model"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def write_rows(path: Path, sums: list[tuple[int, int]]) -> None:
    """One addition a line, with its result as the label."""
    lines = (json.dumps({"prompt": f"{a}+{b}=", "label": str(a + b)}) for a, b in sums)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
