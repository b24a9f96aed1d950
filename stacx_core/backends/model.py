"""Loading and running a Hugging Face language model, with its own head or a scalar one, on packed batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from stacx_core.backends.attention import IMPLEMENTATION, AttentionLayout, PackedLayout
from stacx_core.backends.hub import work_offline_unless_it_answers
from stacx_core.backends.linear import use_onednn
from stacx_core.errors import ModelError

logger = logging.getLogger(__name__)

SCALAR_HEAD = "score"
"""Name that Transformers gives the head of its sequence-classification models."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ModelError: CUDA was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: torch sees no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def load_tokenizer(checkpoint: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        ModelError: There is none, it cannot be read, or it makes ids for which the model has no embedding.
    """
    config = load_config(checkpoint)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(checkpoint)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable("tokenizer", checkpoint, error) from error
    _check_vocabulary(tokenizer, config, checkpoint)
    return tokenizer


def context_length(checkpoint: str) -> int | None:
    """Most positions the model was made for, or ``None`` when its config does not say."""
    limit = getattr(load_config(checkpoint), "max_position_embeddings", None)
    return int(limit) if limit else None


def vocabulary_size(checkpoint: str) -> int | None:
    """How many token ids the model has an embedding for, or ``None`` when its config does not say."""
    size = getattr(load_config(checkpoint).get_text_config(), "vocab_size", None)
    return int(size) if size else None


def stop_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends a response: the generation config's and the tokenizer's.

    Raises:
        ModelError: Neither names one.
    """
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    listed = ids if isinstance(ids, list) else [ids]
    found = sorted({int(i) for i in (*listed, tokenizer.eos_token_id) if i is not None})
    if not found:
        raise ModelError("neither the model's generation config nor its tokenizer names an end-of-sequence token")
    return found


def load_config(checkpoint: str) -> PreTrainedConfig:
    _check_folder(checkpoint)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable("model config", checkpoint, error) from error
    return config


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, checkpoint: str) -> None:
    """Refuse a tokenizer that uses ids beyond the model's vocabulary.

    A token that was added, but that neither ends nor begins a text nor stands in the chat template, is let pass:
    some text models come with the placeholder of an image behind their vocabulary.
    """
    size = getattr(config.get_text_config(), "vocab_size", math.inf)
    added = tokenizer.get_added_vocab()
    template = str(tokenizer.chat_template or "")
    ends = (tokenizer.bos_token, tokenizer.eos_token)
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if index >= size and (token not in added or token in ends or token in template):
            raise ModelError(
                f"{checkpoint!r}: token {token!r} has id {index}, but the model's vocabulary ends at {size - 1}",
                "use the tokenizer that belongs to the model, or resize the model's embeddings and save it anew",
            )


def load_model(
    checkpoint: str,
    dtype: torch.dtype,
    device: torch.device,
    head: Literal["lm", "scalar"] = "lm",
    fresh_head: bool = True,
) -> nn.Module:
    """A model that runs on packed batches.

    A scalar head that the checkpoint does not bring starts at zero, so that every value is 0 before training; without
    ``fresh_head`` the checkpoint must bring it.

    Raises:
        ModelError: The checkpoint cannot be read, lacks weights or has some of other shapes, or its attention cannot be
            packed.
    """
    _check_folder(checkpoint)
    kind, extra = (
        (AutoModelForCausalLM, {}) if head == "lm" else (AutoModelForSequenceClassification, {"num_labels": 1})
    )
    try:
        loaded: Any = kind.from_pretrained(
            checkpoint,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # They are refused below, by name.
            **extra,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load a language model with head {head!r} from {checkpoint!r}: {error}") from error
    model: nn.Module = loaded[0]
    _refuse_misshapen(checkpoint, loaded[1]["mismatched_keys"])
    absent = set(loaded[1]["missing_keys"])
    if head == "scalar":
        fresh = _start_at_zero(model, absent)
        if fresh and not fresh_head:
            raise ModelError(f"{checkpoint!r} has no trained scalar head", "train one with the recipe reward_model")
        absent -= fresh
    if absent:
        raise ModelError(f"{checkpoint!r} lacks {len(absent)} weights, first {min(absent)!r}; it is not whole")
    model.to(device)
    # A packed batch has no padding: a padding token there is one that means something, the end of a turn say.
    model.get_input_embeddings().padding_idx = None  # type: ignore[operator]
    use_onednn(model)
    check_packing(model)
    return model


def _refuse_misshapen(checkpoint: str, found: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    for name, shape, wanted in sorted(found):
        raise ModelError(f"{checkpoint!r}: {name!r} has shape {tuple(shape)}, its config wants {tuple(wanted)}")


def output_head(model: nn.Module) -> nn.Module:
    """The layer whose output is the model's: logits, or the values of a scalar head."""
    head: nn.Module = getattr(model, SCALAR_HEAD, None) or model.get_output_embeddings()  # type: ignore[operator]
    return head


def recompute_activations(model: nn.Module) -> None:
    """Keep no activations of the layers for the backward pass, but compute them again."""
    # Transformers renamed the method within version 5.
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def _start_at_zero(model: nn.Module, missing: set[str]) -> set[str]:
    """Zero what the checkpoint lacks of the scalar head; returns its names.

    Raises:
        ModelError: The architecture keeps its head somewhere else.
    """
    score = getattr(model, SCALAR_HEAD, None)
    if not isinstance(score, nn.Linear) or score.out_features != 1:
        raise ModelError(f"{type(model).__name__} has no linear head {SCALAR_HEAD!r} with one output")
    fresh = {name for name in missing if name.startswith(f"{SCALAR_HEAD}.")}
    if fresh:
        logger.info("the scalar head of %s starts at zero", type(model).__name__)
        nn.init.zeros_(score.weight)
    return fresh


def _check_folder(checkpoint: str) -> None:
    if Path(checkpoint).is_dir():
        return
    if checkpoint.startswith((".", "/", "~")) or checkpoint.count("/") > 1:
        raise ModelError(f"no folder {checkpoint!r}; give a Hugging Face model folder or a hub id")
    work_offline_unless_it_answers()


def _unusable(what: str, checkpoint: str, error: Exception) -> ModelError:
    if Path(checkpoint).is_dir():
        return ModelError(f"no usable {what} in {checkpoint!r}: {error}")
    reason = str(error).splitlines()[0]
    return ModelError(
        f"{checkpoint!r} is no folder in {Path.cwd()}, and the Hugging Face hub gives no {what} of that name: {reason}",
        "give the path of a Hugging Face model folder, or the id of a model on the hub, which is OWNER/NAME",
    )


def check_packing(model: nn.Module) -> None:
    """Make sure that every attention layer follows the packed layout.

    Raises:
        ModelError: A layer ignored the layout, so that packed sequences would see each other.
    """
    device = next(model.parameters()).device
    layout = PackedLayout([2, 3], device)
    tokens = torch.zeros(1, 5, dtype=torch.int64, device=device)
    positions = torch.tensor([[0, 1, 0, 1, 2]], device=device)
    with torch.no_grad():
        forward(model, tokens, positions, layout)
    layers = int(model.config.get_text_config().num_hidden_layers)  # type: ignore[union-attr, operator]
    if len(layout.layers_seen) != layers:
        raise ModelError(
            f"{type(model).__name__}: {len(layout.layers_seen)} of {layers} layers use a replaceable attention; "
            "this architecture cannot be trained on packed batches"
        )


def forward(
    model: nn.Module,
    tokens: Tensor,
    positions: Tensor,
    layout: AttentionLayout,
    rows: Tensor | None = None,
) -> Tensor:
    """Logits, or the values of a scalar head, of packed or decoded tokens.

    Args:
        model: From :func:`load_model`.
        tokens: ``[B, T]`` int64.
        positions: ``[B, T]`` int64, from 0 within each sequence.
        layout: What may attend to what.
        rows: Positions along T to compute the head for; all by default.

    Returns:
        ``[B, T or len(rows), V]`` in the model's dtype, with V = 1 for a scalar head.
    """
    if hasattr(model, SCALAR_HEAD):
        hidden = model.base_model(  # type: ignore[operator]
            input_ids=tokens, position_ids=positions, use_cache=False, attention_layout=layout
        ).last_hidden_state
        values: Tensor = model.score(hidden if rows is None else hidden[:, rows])  # type: ignore[operator]
        return values
    kept: dict[str, Any] = {} if rows is None else {"logits_to_keep": rows}
    output = model(input_ids=tokens, position_ids=positions, use_cache=False, attention_layout=layout, **kept)
    logits: Tensor = output.logits
    return logits
