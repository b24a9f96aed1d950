"""Make the models and the prompts of the benchmark: ``python task.py FOLDER``.

All models are Llamas of 0.8 million parameters that write digits and other characters. ``FOLDER/long`` is untrained and
has a vocabulary of 256, so that it rarely samples the stop token; ``FOLDER/mixed`` is untrained and has one of 14, so
that its completions stop at all lengths; ``FOLDER/short`` is ``mixed`` after some supervised steps on sums.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stacx_core.cli import main as stacx

SPECIAL = ["<end>", "<unknown>"]
FEW = [*"0123456789+="]
MANY = [*FEW, *(chr(c) for c in range(0x100, 0x1F2))]
ROWS = 2000


def make_task(folder: Path) -> None:
    """Write ``sums.jsonl`` and the three models."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    sums = [(rng.randrange(10, 100), rng.randrange(10, 100)) for _ in range(ROWS)]
    rows = (json.dumps({"prompt": f"{a}+{b}=", "label": str(a + b)}) for a, b in sums)
    (folder / "sums.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for name, characters in {"long": MANY, "mixed": FEW}.items():
        tokenizer = make_tokenizer(characters)
        make_model(tokenizer).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    warm_start(folder)


def make_tokenizer(characters: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per character."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="<unknown>"
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Four layers of width 128, randomly initialised."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def warm_start(folder: Path) -> None:
    """Train ``mixed`` on the sums and put the result at ``short``."""
    run = folder / "sft"
    flags = {
        "--algorithm": "sft",
        "--hf-checkpoint": folder / "mixed",
        "--prompt-data": folder / "sums.jsonl",
        "--label-key": "label",
        "--rollout-batch-size": 128,
        "--num-rollout": 60,
        "--lr": 1e-3,
        "--output-dir": run,
    }
    if stacx(["train", *(str(part) for flag in flags.items() for part in flag)]):
        raise SystemExit("the warm start failed")
    (run / "checkpoints" / "latest" / "policy").resolve().rename(folder / "short")


if __name__ == "__main__":
    make_task(Path(sys.argv[1]))
