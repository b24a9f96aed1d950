"""Tiny models, and what each process computes with its part of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stacx_core.planning.layout import Layout

VOCABULARY = 37
LENGTHS = ((5, 3, 9), (1, 12))
"""Samples of each micro-batch; no length suits two context-parallel processes."""

SENTENCE = "The quick brown fox jumps over the lazy dog and runs through the forest until night falls."

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
EXPERTS = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3-moe-every-second": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": False, "decoder_sparse_step": 2}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": YARN}),
    "values": ("Llama", {"num_labels": 1}),
    "bf16": ("Qwen3", {"head_dim": 16, "dtype": "bfloat16"}),
}


def make(name: str, folder: Path, **given: Any) -> Any:
    """Save a random model; every parameter is random, norms and biases too."""
    import transformers

    family, extra = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **extra, **given})
    kind = "SequenceClassification" if name == "values" else "CausalLM"
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def micro_batches(folder: str | None = None) -> list[Tensor]:
    """``[1, T]`` token ids of each micro-batch: of a sentence if the model has a tokenizer, else random ones.

    A pretrained model's logits for senseless tokens may depend on rounding.
    """
    if folder is None or not (Path(folder) / "tokenizer.json").exists():
        generator = torch.Generator().manual_seed(1)
        return [torch.randint(VOCABULARY, (1, sum(lengths)), generator=generator) for lengths in LENGTHS]
    from transformers import AutoTokenizer

    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"])
    return [torch.cat([ids[:length] for length in lengths])[None] for lengths in LENGTHS]


def coefficients(width: int) -> list[Tensor]:
    """``[T, width]`` of each micro-batch: the tests' loss is the sum of them times the tanh of the model's output."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(sum(lengths), width, generator=generator) for lengths in LENGTHS]


@dataclass(frozen=True)
class Shard:
    """A part of a micro-batch's output."""

    columns: range
    rows: Tensor
    values: Tensor


def whole(shards: Sequence[Shard]) -> Tensor:
    """``[T, V]``, of the parts of all processes."""
    width = max(shard.columns.stop for shard in shards)
    output = torch.full((len(shards[0].rows), width), torch.nan)
    for shard in shards:
        mine = (shard.rows >= 0).nonzero()[:, 0]
        output[mine[:, None], torch.tensor(shard.columns)] = shard.values[shard.rows[mine]]
    return output


@dataclass(frozen=True)
class Result:
    """What one process computed of one model."""

    outputs: list[list[Shard]]
    gradients: dict[str, Tensor]


Case = tuple[dict[str, Any], dict[str, str], str]
"""Sizes of a layout, the folders of models by their names, and a folder to write their weights to."""


def compute(cases: dict[str, Case]) -> dict[str, dict[str, Result]]:
    """On one process: outputs and gradients of each model in each layout, and its weights written."""
    from megatron.core import parallel_state

    from stacx_core.backends.megatron.layout import initialize

    found = {}
    for name, (sizes, folders, exports) in cases.items():
        layout = Layout(**sizes)
        initialize(layout, seed=3)
        found[name] = {model: _compute(folder, layout, Path(exports) / model) for model, folder in folders.items()}
        parallel_state.destroy_model_parallel()
    return found


def _compute(folder: str, layout: Any, exports: Path) -> Result:
    import torch.distributed as dist
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from transformers import AutoConfig

    from stacx_core.backends.megatron.conversion.checkpoint import write
    from stacx_core.backends.megatron.conversion.exporting import export
    from stacx_core.backends.megatron.conversion.loading import load
    from stacx_core.backends.megatron.model import build

    config = AutoConfig.from_pretrained(folder)
    head = "scalar" if "Classification" in str(config.architectures) else "lm"
    stage = build(config, layout, config.dtype, head)  # type: ignore[arg-type]
    load(stage, config, layout, folder, fresh_head=False)
    weights = export(stage, config, layout)
    if dist.get_rank() == 0:
        exports.mkdir(parents=True)
        write(weights, exports)
    assert not list(weights)
    model = DistributedDataParallel(stage.config, DistributedDataParallelConfig(), stage)
    outputs = _backward(model, layout, micro_batches(folder), 1 if head == "scalar" else config.vocab_size)
    for parameter in stage.parameters():
        parameter.data.copy_(parameter.main_grad)
    gradients = {name: value.clone() for name, value in export(stage, config, layout, to=None)}
    return Result(outputs, gradients)


def _backward(model: Any, layout: Any, batches: list[Tensor], width: int) -> list[list[Shard]]:
    from megatron.core import parallel_state

    from stacx_core.backends.megatron.packing import pack
    from stacx_core.backends.megatron.schedule import run_pipeline

    context = parallel_state.get_context_parallel_rank()
    stage = model.module
    columns = stage.columns if width > 1 else range(1)
    seen: list[list[Shard]] = []

    def forward(index: int) -> Any:
        packed = pack(batches[index], LENGTHS[index], layout, context)

        def loss(output: Tensor) -> Tensor:
            seen.append([Shard(columns, packed.rows, output.detach().clone())])
            mine = (packed.rows >= 0).nonzero()[:, 0]
            chosen = coefficients(width)[index][mine[:, None], torch.tensor(columns)]
            return (chosen * output[packed.rows[mine]].tanh()).sum()

        return model(packed), loss

    share = range(parallel_state.get_data_parallel_rank(), len(LENGTHS), layout.data)
    run_pipeline(model, stage.config, share, forward)
    return seen
