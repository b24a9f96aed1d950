"""Memory of a rank, part by part, in bytes.

Symbols: `n` tokens of a micro-batch on this GPU, `h` hidden size, `a`, `k`, `d` query heads, KV heads and their width,
`f` feed-forward width, `V` vocabulary, `L` layers; `t`, `p`, `c` tensor, pipeline and context sizes; `e` bytes of an
element; `r` = 1/t with sequence parallelism and 1 without.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from stacx_core.planning.layout import Layout
from stacx_core.planning.parameters import rank_parameters, stage_sparse
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster, MicroBatches, Workload, micro_batches

FP32 = 4


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank of one pipeline stage."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    reserved: float

    @property
    def total(self) -> float:
        """All parts together."""
        return float(sum(self.parts().values()))

    def parts(self) -> dict[str, float]:
        """Name -> bytes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        return max(self.parts().items(), key=lambda part: part[1])[0]


def memory(shape: ModelShape, layout: Layout, work: Workload, cluster: Cluster, stage: int) -> Memory:
    """The peak of a rank of a stage: it is taken to have all parts at once, in the backward pass of a micro-batch."""
    cut = micro_batches(layout, work)
    weights, gradients, optimizer = model_state(shape, layout, work, stage)
    last = stage == layout.pipeline - 1
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=stage_activations(shape, layout, work, cut, stage),
        logits=logits(shape, layout, cut.tokens, work.element) if last else 0.0,
        buffers=buffers(shape, layout, cut.tokens, work.element),
        reserved=cluster.reserved_gb * 1e9,
    )


def model_state(shape: ModelShape, layout: Layout, work: Workload, stage: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states.

    bf16: 2 for the weight, 4 for the gradient, which Megatron-core accumulates in fp32, and 12 for Adam's two moments
    and the fp32 weight: 18 a parameter, or 6 + 12/D with the distributed optimizer, as Megatron-core's page on it says
    (after Rajbhandari et al. 2020, ZeRO, section 5.1: stage 1). fp32 has no second copy of the weight: 16, or 8 + 8/D.
    D are the ranks that hold the same parameters: data x context, for experts the expert-data group.
    """
    held = rank_parameters(shape, layout, stage)
    state = 2 * FP32 + (FP32 if work.element < FP32 else 0)
    dense, expert = (layout.data * layout.context, layout.expert_data) if layout.distributed_optimizer else (1, 1)
    return (
        float(work.element * held.total),
        float(FP32 * held.total),
        state * (held.dense / dense + held.expert / expert),
    )


def layer_activations(shape: ModelShape, layout: Layout, tokens: float, element: int, sparse: bool = False) -> float:
    """Bytes that the forward pass of one layer keeps for its backward pass.

    Korthikanti et al. 2022 (Reducing activation recomputation in large transformer models), eq. 1 counts `34 s b h`
    bytes plus `5 a s^2 b` of attention scores; eq. 2 divides by t what tensor parallelism splits, eq. 4 the rest with
    sequence parallelism. Counted anew for this kind of layer, in elements per token:

    - each of two RMSNorms keeps its input, and the linear layer behind it its own: `4 h r`;
    - attention keeps q, k, v and its output, which is the input of the output projection: `(2a + 2kc) d / t`. K and V
      are those of the whole context group, gathered. Scores are recomputed by the fused kernel (Dao et al. 2022), which
      keeps one fp32 number per head, so that the term `5 a s^2 b` is gone, and there is no dropout and hence no mask;
    - normalised queries and keys: their inputs, `(a + k) d / t`;
    - SwiGLU keeps gate, up, silu(gate) and the product: `4 f / t`;
    - each RMSNorm keeps one fp32 number per row it normalises.

    A mixture of experts has, with K experts per token and balanced routing, in place of the last block: for each of
    `K r` routed copies the input `h`, `4 f_e` within the expert, which is whole, and the output `h`; and the router's
    fp32 logits and probabilities of E experts, `2 E r`.
    """
    h, a, k, d, t, r = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, layout.tensor, layout.local_tokens
    elements = 4 * h * r + (2 * a + 2 * k * layout.context) * d / t
    numbers = a / t + 2 * r
    if shape.qk_norm:
        elements += (a + k) * d / t
        numbers += (a + k) / t
    if sparse:
        elements += shape.experts_per_token * r * (2 * h + 4 * shape.expert_ffn)
        numbers += 2 * shape.experts * r
    else:
        elements += 4 * shape.ffn / t
    return tokens * (element * elements + FP32 * numbers)


def stage_activations(shape: ModelShape, layout: Layout, work: Workload, cut: MicroBatches, stage: int) -> float:
    """Bytes of all layers of a stage at its peak.

    Under the 1F1B schedule stage i holds `min(p - i, m)` micro-batches (Korthikanti et al. 2022, section 4.2.3 and
    eq. 5, for the first stage: `p` micro-batches of `L/p` layers). With recomputation a layer keeps its input only,
    `n h r e`, and the layer that is being recomputed is there in full, once. The last stage also keeps the inputs of
    the final norm and of the output layer.
    """
    hidden = cut.tokens * shape.hidden * layout.local_tokens * work.element
    kinds = stage_sparse(shape, layout, stage)
    each = {kind: layer_activations(shape, layout, cut.tokens, work.element, kind) for kind in set(kinds)}
    in_flight = min(layout.pipeline - stage, cut.count)
    kept = len(kinds) * hidden if layout.recompute else sum(each[kind] for kind in kinds)
    working = max(each.values()) if layout.recompute else 0.0
    return in_flight * kept + working + (2 * hidden if stage == layout.pipeline - 1 else 0.0)


def logits(shape: ModelShape, layout: Layout, tokens: float, element: int) -> float:
    """Bytes of the logits of a micro-batch and of their gradient: `2 n V e / t`.

    Log-probs are computed from them in chunks of two million logits, so that no fp32 copy is ever whole.
    """
    return 2 * tokens * layout.vocabulary(shape.vocabulary) / layout.tensor * element


def buffers(shape: ModelShape, layout: Layout, tokens: float, element: int) -> float:
    """Bytes that collectives need beside what they are given.

    - sequence parallelism: the input gathered once more in the backward pass, `n h`;
    - context: the gradients of the gathered K and V before they are scattered, `2 n c k d / t`;
    - pipeline: what is being received and sent, `2 n h r`;
    - experts: what is dispatched and combined, `2 n K h r`.

    Data parallelism needs none: gradients are reduced where they are accumulated.
    """
    hidden = tokens * shape.hidden
    total = hidden if layout.sequence_parallel else 0.0
    if layout.context > 1:
        total += 2 * tokens * layout.context * shape.kv_heads * shape.head_dim / layout.tensor
    if layout.pipeline > 1:
        total += 2 * hidden * layout.local_tokens
    if layout.expert > 1:
        total += 2 * hidden * shape.experts_per_token * layout.local_tokens
    return total * element
