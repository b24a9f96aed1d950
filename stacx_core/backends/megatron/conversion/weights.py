"""Which weights of a Hugging Face checkpoint make up which parameter of which process.

A process reads or gives only its share of each Hugging Face weight. Its parameter is made of such shares alone, so that
no weight is ever needed whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stacx_core.backends.megatron.config import adds_bias_to_queries, head_dim, is_sparse, normalizes_queries
from stacx_core.planning.layout import Layout


@dataclass(frozen=True)
class Source:
    """A weight of a Hugging Face checkpoint.

    Attributes:
        name: In the checkpoint.
        shape: There.
        cut: The dimension that tensor-parallel processes share; None when each has the whole weight.
        padded: Length of that dimension with padding, of which a process has an equal share.
    """

    name: str
    shape: tuple[int, ...]
    cut: int | None = None
    padded: int | None = None

    def share(self, tensor: int, rank: int) -> tuple[int, int]:
        """First and last + 1 index along ``cut`` that tensor-parallel rank ``rank`` has; it fills up the rest of its
        share with zeros."""
        length = self.shape[self.cut or 0]
        if self.cut is None:
            return 0, length
        width = (self.padded or length) // tensor
        return min(rank * width, length), min((rank + 1) * width, length)


@dataclass(frozen=True)
class Weight:
    """A parameter of some processes.

    Attributes:
        parameter: Its name in :class:`stacx_core.backends.megatron.model.Stage`.
        sources: What it is made of: one weight, gate and up, or queries, keys and values.
        stage: Pipeline stage.
        expert: Expert-parallel rank, or None when all have it.
        groups: Groups of queries, keys and values that alternate on one process; 0 when sources lie end to end.
        copies: Whether it repeats what another stage has, and is not exported.
    """

    parameter: str
    sources: tuple[Source, ...]
    stage: int
    expert: int | None = None
    groups: int = 0
    copies: bool = False

    def fuse(self, shares: Sequence[Tensor]) -> Tensor:
        """The parameter, of this process' share of each source."""
        if self.groups:
            return torch.cat([share.unflatten(0, (self.groups, -1)) for share in shares], 1).flatten(0, 1)
        return torch.cat(list(shares)) if len(shares) > 1 else shares[0]

    def split(self, parameter: Tensor, tensor: int) -> list[Tensor]:
        """This process' share of each source, of the parameter."""
        if len(self.sources) == 1:
            return [parameter]
        lengths = [source.shape[0] // tensor if source.cut == 0 else source.shape[0] for source in self.sources]
        if not self.groups:
            return list(parameter.split(lengths))
        parts = parameter.unflatten(0, (self.groups, -1)).split([length // self.groups for length in lengths], 1)
        return [part.flatten(0, 1) for part in parts]


def weights(hf_config: Any, layout: Layout, head: Literal["lm", "scalar"] = "lm") -> Iterator[Weight]:
    """Every parameter of every process, in the order of the Hugging Face model."""
    hidden, last = hf_config.hidden_size, layout.pipeline - 1
    tokens = (hf_config.vocab_size, hidden), 0, layout.vocabulary(hf_config.vocab_size)
    embedding = Source("model.embed_tokens.weight", *tokens)
    yield Weight("embedding.word_embeddings.weight", (embedding,), 0)
    for layer in range(hf_config.num_hidden_layers):
        yield from _layer(hf_config, layout, layer)
    yield Weight("decoder.final_layernorm.weight", (Source("model.norm.weight", (hidden,)),), last)
    if head == "scalar":
        yield Weight("output_layer.weight", (Source("score.weight", (1, hidden)),), last)
    elif not hf_config.tie_word_embeddings:
        yield Weight("output_layer.weight", (Source("lm_head.weight", *tokens),), last)
    elif last:
        yield Weight("output_layer.weight", (embedding,), last, copies=True)


def _layer(hf_config: Any, layout: Layout, layer: int) -> Iterator[Weight]:
    stage, index = divmod(layer, layout.stage_layers(hf_config.num_hidden_layers))
    ours, theirs = f"decoder.layers.{index}", f"model.layers.{layer}"
    hidden = hf_config.hidden_size
    yield from _attention(hf_config, layout, f"{ours}.self_attention", f"{theirs}.self_attn", stage)
    if is_sparse(hf_config, layer):
        yield from _experts(hf_config, layout, f"{ours}.mlp", f"{theirs}.mlp", stage)
    else:
        yield from _mlp(f"{ours}.mlp", f"{theirs}.mlp", (hf_config.intermediate_size, hidden), stage, None)
    for norm, name in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")):
        yield Weight(f"{ours}.{norm}.weight", (Source(f"{theirs}.{name}.weight", (hidden,)),), stage)


def _attention(hf_config: Any, layout: Layout, ours: str, theirs: str, stage: int) -> Iterator[Weight]:
    width, hidden = head_dim(hf_config), hf_config.hidden_size
    queries, keys = hf_config.num_attention_heads * width, hf_config.num_key_value_heads * width
    groups = hf_config.num_key_value_heads // layout.tensor
    rows = (("q", queries), ("k", keys), ("v", keys))
    for kind in ("weight", "bias") if adds_bias_to_queries(hf_config) else ("weight",):
        shapes = [(name, (count, hidden) if kind == "weight" else (count,)) for name, count in rows]
        sources = tuple(Source(f"{theirs}.{name}_proj.{kind}", shape, 0) for name, shape in shapes)
        yield Weight(f"{ours}.linear_qkv.{kind}", sources, stage, groups=groups)
    yield Weight(f"{ours}.linear_proj.weight", (Source(f"{theirs}.o_proj.weight", (hidden, queries), 1),), stage)
    if normalizes_queries(hf_config):
        for name in ("q", "k"):
            yield Weight(f"{ours}.{name}_layernorm.weight", (Source(f"{theirs}.{name}_norm.weight", (width,)),), stage)


def _mlp(ours: str, theirs: str, shape: tuple[int, int], stage: int, expert: int | None) -> Iterator[Weight]:
    """An MLP that tensor-parallel processes share, or an expert, which one process has whole."""
    features, hidden = shape
    rows, columns = (0, 1) if expert is None else (None, None)
    gate_up = tuple(Source(f"{theirs}.{name}_proj.weight", (features, hidden), rows) for name in ("gate", "up"))
    yield Weight(f"{ours}.linear_fc1.weight", gate_up, stage, expert)
    down = Source(f"{theirs}.down_proj.weight", (hidden, features), columns)
    yield Weight(f"{ours}.linear_fc2.weight", (down,), stage, expert)


def _experts(hf_config: Any, layout: Layout, ours: str, theirs: str, stage: int) -> Iterator[Weight]:
    router = Source(f"{theirs}.gate.weight", (hf_config.num_experts, hf_config.hidden_size))
    yield Weight(f"{ours}.router.weight", (router,), stage)
    shape = (hf_config.moe_intermediate_size, hf_config.hidden_size)
    for expert in range(hf_config.num_experts):
        rank, index = divmod(expert, hf_config.num_experts // layout.expert)
        local = f"{ours}.experts.local_experts.{index}"
        yield from _mlp(local, f"{theirs}.experts.{expert}", shape, stage, rank)
