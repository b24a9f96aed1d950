"""A folder that Transformers loads: weights, the model's config and how it generates."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig

from stacx_core.backends.megatron.conversion.checkpoint import write
from stacx_core.planning.shape import FAMILIES


def write_model(
    weights: Iterable[tuple[str, Tensor]],
    folder: Path,
    hf_config: Any,
    dtype: torch.dtype,
    head: Literal["lm", "scalar"],
    source: str,
) -> None:
    """Write weights as they come from :func:`stacx_core.backends.megatron.conversion.exporting.export`.

    Args:
        source: Checkpoint whose generation config goes with a language model.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(weights, folder)
    config = copy.deepcopy(hf_config)
    kind = "ForCausalLM" if head == "lm" else "ForSequenceClassification"
    config.architectures, config.dtype = [FAMILIES[config.model_type] + kind], dtype
    if head == "scalar":
        config.num_labels = 1
    config.save_pretrained(folder)
    if head == "lm":
        generation_config(source, config).save_pretrained(folder)


def generation_config(checkpoint: str, config: Any) -> GenerationConfig:
    """The generation config of a checkpoint, or the one that its config implies."""
    try:
        return GenerationConfig.from_pretrained(checkpoint)
    except OSError:
        return GenerationConfig.from_model_config(config)
