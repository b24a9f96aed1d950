"""Counts of parameters: on paper, against Transformers' models, and over all ranks of any layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from stacx_core.planning.layout import Layout
from stacx_core.planning.parameters import active_parameters, rank_parameters, stage_parts, total_parameters
from stacx_core.planning.shape import WELL_KNOWN, ModelShape, load_shape, shape_of

SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}
MOE = {**SMALL, "head_dim": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "llama tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama with heads of another width": LlamaConfig(**SMALL, head_dim=8),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2 tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "qwen3_moe": Qwen3MoeConfig(**MOE, num_experts=4),
    "qwen3_moe, every other layer dense": Qwen3MoeConfig(**MOE, num_experts=4, decoder_sparse_step=2),
    "qwen3_moe with a dense layer": Qwen3MoeConfig(**MOE, num_experts=4, mlp_only_layers=[1]),
}


def meta_count(config: PreTrainedConfig) -> int:
    """Parameters of Transformers' model, which takes no memory on the meta device."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_that_of_transformers(name: str) -> None:
    config = CONFIGS[name]
    assert total_parameters(shape_of(name, config.to_dict())) == meta_count(config)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen3-4b", 4_022_468_096), ("qwen3-32b", 32_762_123_264), ("qwen3-235b-a22b", 235_093_634_560)],
)
def test_the_count_of_a_well_known_model(name: str, expected: int) -> None:
    kinds = {"qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}
    config = kinds[WELL_KNOWN[name]["model_type"]](**WELL_KNOWN[name])
    assert total_parameters(load_shape(name)) == expected == meta_count(config)


def test_the_count_of_a_folder(tmp_path: Any) -> None:
    CONFIGS["qwen3"].save_pretrained(tmp_path)
    assert total_parameters(load_shape(str(tmp_path))) == meta_count(CONFIGS["qwen3"])


def test_a_count_on_paper(tiny: ModelShape) -> None:
    """A layer: norms 16, QKV 8 x 16 = 128, output 8 x 8 = 64, feed-forward 3 x 8 x 16 = 384: 592; embedding and
    output layer 80 each, final norm 8."""
    assert total_parameters(tiny) == 2 * 592 + 80 + 80 + 8 == 1352
    assert total_parameters(replace(tiny, tied=True)) == 1272


def test_experts_on_paper(routed: ModelShape) -> None:
    """An expert has 3 x 8 x 6 = 144; a layer 16 + 128 + 64, a router of 32, and 4 experts: 816."""
    assert total_parameters(routed) == 2 * 816 + 168
    assert active_parameters(routed) == 2 * (816 - 2 * 144) + 168


def test_a_rank_on_paper(tiny: ModelShape) -> None:
    """TP 2 halves all but the norms; PP 2 gives each stage a layer, and a vocabulary of 10 needs no padding."""
    assert rank_parameters(tiny, Layout(tensor=2, pipeline=2), 0).total == 16 + 576 // 2 + 40
    assert rank_parameters(tiny, Layout(tensor=2, pipeline=2), 1).total == 16 + 576 // 2 + 40 + 8
    assert rank_parameters(replace(tiny, tied=True), Layout(pipeline=2), 1).total == 592 + 80 + 8


def test_experts_are_whole_on_a_rank_on_paper(routed: ModelShape) -> None:
    """EP 2: two of four experts of 144 in each of two layers. TP 2 halves projections of 192 and tables of 160, but not
    norms of 16, routers of 32 and the final norm of 8."""
    held = rank_parameters(routed, Layout(tensor=2, expert=2, sequence_parallel=True), 0)
    assert (held.expert, held.dense) == (2 * 2 * 144, 2 * (16 + 32 + 192 // 2) + 160 // 2 + 8)


def test_the_vocabulary_is_padded_to_the_tensor_group(tiny: ModelShape) -> None:
    """11 tokens are 12 rows of 8 at TP 2, half of them on each rank."""
    embedding = next(iter(stage_parts(replace(tiny, vocabulary=11), Layout(tensor=2), 0)))
    assert (embedding.count, embedding.extra, embedding.per_rank) == (96, 8, 48)


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    expert=st.sampled_from([1, 2, 4]),
    vocabulary=st.integers(1, 99),
    flags=st.tuples(*[st.booleans()] * 3),
    sparse=st.tuples(*[st.booleans()] * 4),
)
def test_the_ranks_hold_the_model(
    tensor: int, pipeline: int, expert: int, vocabulary: int, flags: tuple[bool, ...], sparse: tuple[bool, ...]
) -> None:
    """Cut parts added up over the ranks, and copied ones counted once, are the model, its padding and the copy of a
    tied embedding."""
    shape = ModelShape("any", 16, 8, 4, 4, 32, vocabulary, sparse, *flags, 4, 2, 8)
    layout = Layout(tensor, pipeline, expert=expert, data=expert)
    parts = [part for stage in range(pipeline) for part in stage_parts(shape, layout, stage)]
    assert all(part.count % part.shards == 0 for part in parts)
    assert sum(part.per_rank * part.shards - part.extra for part in parts) == total_parameters(shape)
    held = [rank_parameters(shape, layout, stage).total for stage in range(pipeline)]
    assert sum(held) == sum(part.per_rank for part in parts)
