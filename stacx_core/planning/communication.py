"""Bytes that a rank sends, collective by collective, the link they cross, and how long they take at least.

A ring gathers or reduce-scatters a buffer of S bytes over g ranks by sending `S (g-1)/g` from each, and all-reduces it
by doing both (Thakur et al. 2005; Patarasuk and Yuan 2009); an all-to-all of S bytes per rank sends as much. These are
lower bounds: latency is left out. Symbols as in `stacx_core.planning.memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stacx_core.planning.layout import Group, Layout
from stacx_core.planning.memory import FP32
from stacx_core.planning.parameters import rank_parameters, stage_sparse, total_parameters
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster


@dataclass(frozen=True)
class Traffic:
    """What one rank sends.

    Args:
        group: name of the parallel group, a key of `Layout.groups`.
        kind: the collectives.
        ranks: the group itself.
        sent: bytes.
    """

    group: str
    kind: str
    ranks: Group
    sent: float

    def link(self, cluster: Cluster) -> str:
        """The slowest link that it crosses."""
        return "inter-node" if self.ranks.crosses(cluster.gpus_per_node) else "intra-node"

    def seconds(self, cluster: Cluster) -> float:
        """Bytes over the bandwidth that a rank has.

        Within a node that is the faster link. A ring over nodes enters and leaves a node once, over the ports of all
        ranks it has there: bandwidth `min(intra, ranks in the node x inter)`. An all-to-all sends `(g - w)/(g - 1)` of
        its bytes to other nodes, w being the ranks in a node, beside what stays within. A pipeline stage sends to one
        rank, at worst in another node.
        """
        intra, inter = cluster.intra_node_gbs * 1e9, cluster.inter_node_gbs * 1e9
        if not self.ranks.crosses(cluster.gpus_per_node):
            return self.sent / intra
        here = self.ranks.per_node(cluster.gpus_per_node)
        if self.kind == "all-to-all":
            away = (self.ranks.size - here) / (self.ranks.size - 1)
            return self.sent * max(away / inter, (1 - away) / intra)
        if self.kind == "send":
            return self.sent / inter
        return self.sent / min(intra, here * inter)

    def times(self, count: int) -> Traffic:
        """The same, so many times."""
        return replace(self, sent=self.sent * count)


def micro_batch_traffic(shape: ModelShape, layout: Layout, tokens: float, element: int, stage: int) -> list[Traffic]:
    """What a rank of a stage sends for the forward and backward pass of one micro-batch, groups of one left out."""
    groups = layout.groups()
    t, c, e, p = (groups[name].size for name in ("tensor", "context", "expert", "pipeline"))
    found = []
    if t > 1:
        kind = "all-gather + reduce-scatter" if layout.sequence_parallel else "all-reduce"
        passes = _tensor_passes(shape, layout, stage) * tokens * shape.hidden * element
        found.append(Traffic("tensor", kind, groups["tensor"], passes * (t - 1) / t))
    if c > 1:
        own = 2 * tokens * shape.kv_heads * shape.head_dim / t * element
        passes = _forwards(layout) + 1
        sent = passes * layout.stage_layers(shape.layers) * own * (c - 1)
        found.append(Traffic("context", "all-gather + reduce-scatter", groups["context"], sent))
    if e > 1:
        routed = tokens * layout.local_tokens * shape.experts_per_token * shape.hidden * element
        passes = 2 * (_forwards(layout) + 1) * sum(stage_sparse(shape, layout, stage))
        found.append(Traffic("expert", "all-to-all", groups["expert"], passes * routed * (e - 1) / e))
    if p > 1:
        ends = (stage > 0) + (stage < p - 1)
        sent = ends * tokens * shape.hidden * layout.local_tokens * element
        found.append(Traffic("pipeline", "send", groups["pipeline"], sent))
    return found


def _forwards(layout: Layout) -> int:
    """Forward passes of a layer: recomputation repeats it with all its collectives."""
    return 2 if layout.recompute else 1


def _tensor_passes(shape: ModelShape, layout: Layout, stage: int) -> float:
    """How often a buffer of `n h` elements goes around the tensor group, gathered or reduce-scattered.

    Without sequence parallelism attention and feed-forward block each end in an all-reduce, 2 passes, in the forward
    and in the backward pass (Shoeybi et al. 2019, section 3). With it they begin with a gather and end in a
    reduce-scatter, as many passes, and the backward pass gathers each input once more for the gradient of the weights
    (Korthikanti et al. 2022, section 4.2.2). A mixture of experts gathers nothing over the tensor group: it takes each
    rank's own tokens. The embedding and the output layer add a block's half each way.
    """
    forwards, sp = _forwards(layout), layout.sequence_parallel
    block = 2 * (forwards + 1) + (1 if sp else 0)
    total = 0.0
    for sparse in stage_sparse(shape, layout, stage):
        total += block if sparse else 2 * block
    if stage == 0:
        total += 2
    if stage == layout.pipeline - 1:
        total += 3 if sp else 2
    return total


def step_traffic(shape: ModelShape, layout: Layout, element: int, stage: int) -> list[Traffic]:
    """What a rank of a stage sends once per optimizer step, groups of one left out.

    Gradients are fp32. The distributed optimizer reduce-scatters them and gathers the updated weights, `4 + e` bytes a
    parameter; without it they are all-reduced, 8 bytes (Rajbhandari et al. 2020, section 7). The two copies of a tied
    embedding on different stages add their gradients.
    """
    held, groups = rank_parameters(shape, layout, stage), layout.groups()
    width = FP32 + element if layout.distributed_optimizer else 2 * FP32
    kind = "reduce-scatter + all-gather" if layout.distributed_optimizer else "all-reduce"
    found = []
    for name, count in (("data", held.dense), ("expert data", held.expert)):
        size = groups[name].size
        if size > 1 and count:
            found.append(Traffic(name, kind, groups[name], width * count * (size - 1) / size))
    if shape.tied and layout.pipeline > 1 and stage in (0, layout.pipeline - 1):
        table = layout.vocabulary(shape.vocabulary) / layout.tensor * shape.hidden
        ends = Group(2, (layout.pipeline - 1) * groups["pipeline"].stride)
        found.append(Traffic("tied embedding", "all-reduce", ends, FP32 * table))
    return found


@dataclass(frozen=True)
class WeightSync:
    """Bytes that move when rollout engines get new weights.

    Args:
        model: the whole model, which every engine receives.
        gathered: what a rank that sends must first get from the others, bucket by bucket.
        sent: what leaves the trainer if each engine is sent its own copy; a broadcast sends `model` once.
        seconds: the model over one port between nodes, which a pipelined broadcast comes close to.
    """

    model: float
    gathered: float
    sent: float
    seconds: float


def weight_sync(shape: ModelShape, layout: Layout, element: int, cluster: Cluster, engines: int) -> WeightSync:
    """The volume of one weight synchronisation to `engines` rollout engines."""
    model = float(element * total_parameters(shape))
    own = element * rank_parameters(shape, layout, 0).total
    return WeightSync(model, max(model - own, 0.0), engines * model, model / (cluster.inter_node_gbs * 1e9))


def combined(parts: Iterator[Traffic]) -> list[Traffic]:
    """Traffic of equal group and kind added up, in the order of its first appearance."""
    sums: dict[tuple[str, str], Traffic] = {}
    for part in parts:
        key = (part.group, part.kind)
        sums[key] = replace(part, sent=part.sent + sums[key].sent) if key in sums else part
    return list(sums.values())
