"""Exact counts of parameters: of the model, of a pipeline stage, of a rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stacx_core.planning.layout import Layout
from stacx_core.planning.shape import ModelShape


@dataclass(frozen=True)
class Part:
    """Parameters of one kind in one stage.

    Args:
        name: what they are.
        count: how many, over all ranks of the stage, each counted once.
        shards: into how many equal pieces they are cut; ranks beyond that hold copies.
        extra: how many of them the model does not have: padding, and the second copy of a tied embedding.
        expert: they belong to routed experts.
    """

    name: str
    count: int
    shards: int = 1
    extra: int = 0
    expert: bool = False

    @property
    def per_rank(self) -> int:
        """How many a rank holds."""
        return self.count // self.shards


@dataclass(frozen=True)
class RankParameters:
    """What a rank holds: `expert` are those of routed experts, which have data-parallel groups of their own."""

    dense: int
    expert: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.dense + self.expert


def total_parameters(shape: ModelShape) -> int:
    """Parameters of the Hugging Face model, a tied embedding counted once."""
    return sum(part.count - part.extra for part in stage_parts(shape, Layout(), 0))


def active_parameters(shape: ModelShape) -> int:
    """Parameters that one token meets: all but the experts it is not sent to."""
    unused = sum(shape.sparse) * (shape.experts - shape.experts_per_token) * _expert(shape)
    return total_parameters(shape) - unused


def rank_parameters(shape: ModelShape, layout: Layout, stage: int) -> RankParameters:
    """Parameters of a rank of a pipeline stage; all of a stage's ranks hold equally many."""
    parts = list(stage_parts(shape, layout, stage))
    expert = sum(part.per_rank for part in parts if part.expert)
    return RankParameters(sum(part.per_rank for part in parts) - expert, expert)


def stage_parts(shape: ModelShape, layout: Layout, stage: int) -> Iterator[Part]:
    """Everything that a pipeline stage holds.

    The first stage has the embedding, the last the final norm and the output layer. A tied output layer is the
    embedding itself if both are in one stage, and a copy of it otherwise (Megatron-core keeps the two equal by adding
    their gradients).
    """
    last = stage == layout.pipeline - 1
    rows = layout.vocabulary(shape.vocabulary)
    padding = (rows - shape.vocabulary) * shape.hidden
    if stage == 0:
        yield Part("embedding", rows * shape.hidden, layout.tensor, padding)
    for sparse, layers in Counter(stage_sparse(shape, layout, stage)).items():
        yield from (replace(part, count=layers * part.count) for part in _layer(shape, layout, sparse))
    if last:
        yield Part("final norm", shape.hidden)
    if last and not shape.tied:
        yield Part("output layer", rows * shape.hidden, layout.tensor, padding)
    elif last and stage > 0:
        yield Part("copy of the embedding", rows * shape.hidden, layout.tensor, rows * shape.hidden)


def stage_sparse(shape: ModelShape, layout: Layout, stage: int) -> tuple[bool, ...]:
    """For each layer of a pipeline stage whether it is sparse."""
    size = layout.stage_layers(shape.layers)
    return shape.sparse[stage * size : (stage + 1) * size]


def _layer(shape: ModelShape, layout: Layout, sparse: bool) -> Iterator[Part]:
    """A layer: column-parallel QKV and gate-up, row-parallel output and down projections; every tensor-parallel rank
    holds the norms and the router (Shoeybi et al. 2019, section 3). Experts are whole."""
    h, d, t = shape.hidden, shape.head_dim, layout.tensor
    qkv = (shape.heads + 2 * shape.kv_heads) * d
    yield Part("norms", 2 * h + (2 * d if shape.qk_norm else 0))
    yield Part("QKV projection", h * qkv + (qkv if shape.qkv_bias else 0), t)
    yield Part("attention output", shape.heads * d * h, t)
    if sparse:
        yield Part("router", shape.experts * h)
        yield Part("experts", shape.experts * _expert(shape), layout.expert, expert=True)
        return
    yield Part("feed-forward", 3 * h * shape.ffn, t)


def _expert(shape: ModelShape) -> int:
    """Gate, up and down projection of one expert."""
    return 3 * shape.hidden * shape.expert_ffn
