"""The expected time of an optimizer step: compute over utilisation, exposed communication, pipeline bubble."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.planning.communication import Traffic, micro_batch_traffic, step_traffic
from stacx_core.planning.layout import Layout
from stacx_core.planning.parameters import stage_sparse
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster, Workload, micro_batches


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step and what they are spent on, and what the slowest stage's ranks send meanwhile.

    Args:
        compute: matrix products of the slowest stage.
        exchange: exposed collectives and sends of the slowest stage, for all micro-batches.
        reduction: exposed reduction of gradients and gathering of weights, once per step.
        bubble: waiting for the pipeline to fill and to drain.
        traffic: what a rank of the slowest stage sends in the step.
    """

    compute: float
    exchange: float
    reduction: float
    bubble: float
    traffic: tuple[Traffic, ...]

    @property
    def total(self) -> float:
        """All parts together."""
        return self.compute + self.exchange + self.reduction + self.bubble


def step_time(shape: ModelShape, layout: Layout, work: Workload, cluster: Cluster) -> StepTime:
    """Time of the forward and backward passes of a step's micro-batches under 1F1B, and of the gradient reduction.

    With stage i taking `t_i` for a micro-batch, the slowest works without a pause for `m max(t)`, and waits while the
    first micro-batch comes and the last one's gradient leaves through all others: `sum(t) - max(t)`, which for equal
    stages is the `(p - 1) t` of Narayanan et al. 2021, section 2.2.1. The optimizer's arithmetic is left out.
    """
    cut = micro_batches(layout, work)
    computes, exchanges, traffics = [], [], []
    for stage in range(layout.pipeline):
        flops = stage_flops(shape, layout, cut.tokens, work.sequence_length, stage)
        computes.append(flops / (cluster.peak_tflops * 1e12 * cluster.utilisation))
        traffics.append(micro_batch_traffic(shape, layout, cut.tokens, work.element, stage))
        exchanges.append(sum(part.seconds(cluster) for part in traffics[-1]))
    totals = [compute + exchange for compute, exchange in zip(computes, exchanges, strict=True)]
    slowest = totals.index(max(totals))
    reductions = [step_traffic(shape, layout, work.element, stage) for stage in range(layout.pipeline)]
    reduction = max(sum(part.seconds(cluster) for part in parts) for parts in reductions)
    return StepTime(
        compute=cut.count * computes[slowest],
        exchange=cut.count * exchanges[slowest],
        reduction=reduction * (1 - work.overlap),
        bubble=sum(totals) - totals[slowest],
        traffic=(*(part.times(cut.count) for part in traffics[slowest]), *reductions[slowest]),
    )


def stage_flops(shape: ModelShape, layout: Layout, tokens: float, sequence: int, stage: int) -> float:
    """Floating-point operations of a rank for a micro-batch, forward and backward, recomputation included.

    The backward pass takes twice the forward pass, and recomputation another forward pass of the layers (Narayanan et
    al. 2021, section 5.1), but not of the output layer.
    """
    forwards = 4 if layout.recompute else 3
    layers = sum(layer_flops(shape, sequence, sparse) for sparse in stage_sparse(shape, layout, stage))
    total = forwards * layers
    if stage == layout.pipeline - 1:
        total += 3 * 2 * shape.hidden * layout.vocabulary(shape.vocabulary)
    return total * tokens / layout.tensor


def layer_flops(shape: ModelShape, sequence: int, sparse: bool) -> float:
    """Operations per token of the forward pass of a layer.

    Two for each weight of a matrix that the token meets, and `4 a d` for each of the `s/2` tokens that it attends to
    on average, `2 a d` for the score and as many for the sum of values: packed samples do not see each other, and a
    causal kernel skips what is masked.
    """
    h, d = shape.hidden, shape.head_dim
    weights = h * d * (2 * shape.heads + 2 * shape.kv_heads)
    if sparse:
        weights += shape.experts * h + 3 * shape.experts_per_token * h * shape.expert_ffn
    else:
        weights += 3 * h * shape.ffn
    return 2 * weights + 2 * shape.heads * d * sequence


def model_flops(shape: ModelShape, work: Workload) -> float:
    """Operations of a step that the model itself needs, without recomputation: three times the forward pass."""
    layers = sum(layer_flops(shape, work.sequence_length, sparse) for sparse in shape.sparse)
    per_token = 3 * (layers + 2 * shape.hidden * shape.vocabulary)
    return per_token * work.global_batch_size * work.sequence_length
