"""Why a layout cannot be, apart from memory; what it cannot be for a model is refused by the backend, too."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stacx_core.errors import ConfigError
from stacx_core.planning.layout import Layout
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster, Workload


def check_fit(shape: ModelShape, layout: Layout) -> None:
    """Refuse a layout that a model cannot be cut in.

    Raises:
        ConfigError: With every reason of :func:`misfits`.
    """
    reasons = list(misfits(shape, layout))
    if reasons:
        raise ConfigError(*reasons)


def misfits(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """Why a model cannot be cut in a layout: flag, value, and what would be right."""
    tensor = f"--tensor-model-parallel-size {layout.tensor}"
    split = {"attention heads": shape.heads, "KV heads": shape.kv_heads}
    if not all(shape.sparse):
        split["columns of a feed-forward block"] = shape.ffn
    for what, count in split.items():
        if count % layout.tensor:
            common = _choices(math.gcd(*split.values()))
            yield f"{tensor} does not divide the {count} {what} of {shape.name}; use {common}"
    rows = layout.vocabulary(shape.vocabulary)
    if rows - shape.vocabulary >= rows // layout.tensor:
        yield f"{tensor} leaves a process without any of the {shape.vocabulary} tokens of {shape.name}; use less"
    if shape.layers % layout.pipeline:
        yield (
            f"--pipeline-model-parallel-size {layout.pipeline} does not divide the {shape.layers} layers of "
            f"{shape.name}; use {_choices(shape.layers)}"
        )
    if layout.sequence_parallel and layout.tensor == 1:
        yield "--sequence-parallel splits tokens over the tensor-parallel group, which has one process; leave it out"
    yield from _expert_misfits(shape, layout)


def _expert_misfits(shape: ModelShape, layout: Layout) -> Iterator[str]:
    """With one process to a group, Megatron-core takes experts for weights that tensor-parallel processes have alike,
    and would not add up their gradients, which come from different tokens."""
    expert = f"--expert-model-parallel-size {layout.expert}"
    if not shape.experts:
        if layout.expert > 1:
            yield f"{expert}: {shape.name} has no experts; use 1"
        return
    if shape.experts % layout.expert:
        yield f"{expert} does not divide the {shape.experts} experts of {shape.name}; use {_choices(shape.experts)}"
    if layout.stage_size % layout.expert:
        common = _choices(math.gcd(shape.experts, layout.stage_size))
        yield (
            f"{expert} does not divide the {layout.stage_size} processes of a pipeline stage (TP {layout.tensor} x "
            f"CP {layout.context} x DP {layout.data}), over which experts are spread; use {common}"
        )
    if layout.tensor > 1 and not (layout.sequence_parallel and layout.expert > 1):
        yield (
            f"--tensor-model-parallel-size {layout.tensor} needs --sequence-parallel and --expert-model-parallel-size "
            f"above 1 for the experts of {shape.name}, which are whole on the process that has them"
        )


def refusals(shape: ModelShape, layout: Layout, work: Workload, cluster: Cluster) -> Iterator[str]:
    """The same, and why a layout cannot be on a machine or for some work."""
    yield from misfits(shape, layout)
    if layout.world_size > cluster.gpus_per_node and layout.world_size % cluster.gpus_per_node:
        yield f"{layout.world_size} GPUs are no whole number of nodes of {cluster.gpus_per_node} (--num-gpus-per-node)"
    yield from _samples(layout, work)


def _samples(layout: Layout, work: Workload) -> Iterator[str]:
    room = work.max_tokens_per_gpu * layout.context
    if work.sequence_length > room:
        yield (
            f"a sample of {work.sequence_length} tokens is longer than --max-tokens-per-gpu {work.max_tokens_per_gpu} "
            f"x CP {layout.context} = {room}; use a larger budget or --context-parallel-size "
            f"{-(-work.sequence_length // work.max_tokens_per_gpu)} or more"
        )
    if layout.data > work.global_batch_size:
        yield (
            f"{layout.data} data-parallel ranks share --global-batch-size {work.global_batch_size}, so that some would "
            "have no sample; use fewer GPUs, or larger TP, PP or CP"
        )


def warnings(layout: Layout, cluster: Cluster) -> Iterator[str]:
    """What is possible and likely a mistake."""
    if layout.tensor > cluster.gpus_per_node:
        yield (
            f"--tensor-model-parallel-size {layout.tensor} is wider than a node of {cluster.gpus_per_node} GPUs: every "
            "layer waits for the link between nodes"
        )


def _choices(count: int) -> str:
    return ", ".join(map(str, divisors(count)))


def divisors(count: int) -> list[int]:
    """The numbers that divide a count, rising."""
    return [n for n in range(1, count + 1) if count % n == 0]
