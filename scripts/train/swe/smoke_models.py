"""Two tiny models to try the launchers with: ``python3 smoke_models.py FOLDER`` makes ``student`` and ``teacher``.

They have one layer, random weights, and one tokenizer, learnt from this repository's tasks. They solve nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TASKS = Path(__file__).parents[3] / "examples" / "swe_tasks"
END = "<|end|>"
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A thousand byte pairs, the end token, and one token for each role of a conversation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, *(f"<|{role}|>" for role in ("system", "user", "assistant"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
    texts = [path.read_text(encoding="utf-8") for path in sorted(TASKS.rglob("*")) if path.suffix in (".md", ".py")]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, chat_template=CHAT)


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of one layer and width 64."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=8,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def main(folder: Path) -> None:
    """Write both models."""
    tokenizer = make_tokenizer()
    for seed, name in enumerate(("student", "teacher")):
        tokenizer.save_pretrained(folder / name)
        make_model(tokenizer, seed).save_pretrained(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
