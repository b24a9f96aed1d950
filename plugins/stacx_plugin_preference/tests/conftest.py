"""What tests of the data share: a word-level tokenizer, and the arguments of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stacx_core import Args
from stacx_plugin_preference.knobs import DPO_KNOBS

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

WORDS = ["[UNK]", "</s>", "<|end|>", "user:", "assistant:", *"abcdefgh"]
CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
HOST = {
    "prompt_data": None,
    "input_key": "prompt",
    "apply_chat_template": "auto",
    "max_sequence_len": None,
    "mask_truncated": False,
    "rollout_batch_size": 2,
    "rollout_shuffle": False,
    "rollout_temperature": 1.0,
    "n_samples_per_prompt": 1,
    "loss_aggregation": "sample_mean",
    "ref_load": None,
    "eval_limit": None,
    "seed": 1,
}


@pytest.fixture(scope="session")
def args_of() -> Callable[..., Args]:
    """The arguments of a `dpo` run with some of them set."""

    def build(**values: Any) -> Args:
        origins = dict.fromkeys(values, "flag")
        return Args({**HOST, **{knob.name: knob.default for knob in DPO_KNOBS}, **values}, origins)

    return build


@pytest.fixture(scope="session")
def tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """A tokenizer of one token per word, with or without a chat template."""

    def build(template: str | None = None) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=backend, unk_token="[UNK]", eos_token="</s>", additional_special_tokens=["<|end|>"]
        )
        made.chat_template = template
        return made

    return build


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    """Write rows to a JSONL file and return its path."""

    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
