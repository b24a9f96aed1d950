"""How a model is laid out over GPUs, what it is given to do, and the machine: what a plan is made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stacx_core.planning.shape import ModelShape


@dataclass(frozen=True)
class Cluster:
    """A machine of equal nodes. The defaults are the data sheet of an H100 SXM with one 400 Gb/s port per GPU.

    Args:
        gpus_per_node: GPUs that reach each other over the faster link.
        memory_gb: of a GPU, in units of 1e9 bytes.
        reserved_gb: of that, what CUDA, NCCL, kernels' workspaces and fragmentation take: an assumption.
        intra_node_gbs, inter_node_gbs: 1e9 bytes per second, per GPU and direction, within a node and between nodes.
        peak_tflops: 1e12 dense operations per second of a GPU in the compute dtype.
        utilisation: share of the peak that matrix products reach: an assumption.
    """

    gpus_per_node: int = 8
    memory_gb: float = 80.0
    reserved_gb: float = 4.0
    intra_node_gbs: float = 450.0
    inter_node_gbs: float = 50.0
    peak_tflops: float = 989.0
    utilisation: float = 0.4


@dataclass(frozen=True)
class Workload:
    """An optimizer step's work.

    Args:
        max_tokens_per_gpu: most tokens that a GPU holds of a micro-batch; a context-parallel group holds as many times.
        sequence_length: tokens of a sample, prompt and response; all are taken to be equally long.
        global_batch_size: samples of an optimizer step, over all GPUs.
        element: bytes of a weight, activation or sent value: 2 for bf16, 4 for fp32.
        overlap: share of the data-parallel traffic that is hidden behind computation.
    """

    max_tokens_per_gpu: int = 8192
    sequence_length: int = 4096
    global_batch_size: int = 1024
    element: int = 2
    overlap: float = 0.0


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel groups of `gpus` ranks; what tensor, pipeline and context leave is data parallel.

    As in Megatron-core the ranks count up in the order tensor, context, data, pipeline. Experts are laid out on their
    own: tensor, expert, expert-data, pipeline, each expert being split over the tensor group like every other layer.
    """

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    recompute: bool = False

    @property
    def data(self) -> int:
        """Ranks that hold the same part of the model and other samples."""
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def expert_data(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.gpus // (self.tensor * self.expert * self.pipeline)

    @property
    def replicated(self) -> float:
        """Share of the tokens that a tensor-parallel rank holds outside attention and feed-forward blocks."""
        return 1 / self.tensor if self.sequence_parallel else 1.0

    def groups(self) -> dict[str, Group]:
        """The groups by name; `data` reduces gradients, so that it spans the context group, too."""
        t, c, p = self.tensor, self.context, self.pipeline
        return {
            "tensor": Group(t, 1),
            "context": Group(c, t),
            "data": Group(c * self.data, t),
            "expert": Group(self.expert, t),
            "expert data": Group(self.expert_data, t * self.expert),
            "pipeline": Group(p, self.gpus // p),
        }

    def stage_layers(self, shape: ModelShape, stage: int) -> tuple[bool, ...]:
        """For each layer of a pipeline stage whether it is sparse."""
        size = shape.layers // self.pipeline
        return shape.sparse[stage * size : (stage + 1) * size]

    def describe(self) -> str:
        """The sizes above one, and the switches."""
        sizes = {"TP": self.tensor, "PP": self.pipeline, "CP": self.context, "EP": self.expert, "DP": self.data}
        shown = [f"{name}{size}" for name, size in sizes.items() if size > 1] or ["one GPU"]
        switches = {"SP": self.sequence_parallel, "recompute": self.recompute}
        return " ".join((*shown, *(name for name, on in switches.items() if on)))


@dataclass(frozen=True)
class Group:
    """Ranks `stride` apart."""

    size: int
    stride: int

    def per_node(self, gpus_per_node: int) -> int:
        """How many of its ranks share a node."""
        return min(self.size, max(gpus_per_node // self.stride, 1))

    def crosses(self, gpus_per_node: int) -> bool:
        """Whether it spans nodes."""
        return self.size > self.per_node(gpus_per_node)


@dataclass(frozen=True)
class MicroBatches:
    """What a data-parallel rank does in a step: `count` micro-batches, `tokens` per GPU in the fullest."""

    count: int
    tokens: float


def micro_batches(layout: Layout, work: Workload) -> MicroBatches:
    """Cut a step's samples, none of which is split but over the context group.

    A rank has at most `ceil(B / dp)` samples, a micro-batch holds `floor(budget * cp / s)`, and samples are spread
    evenly over as many micro-batches as that takes.
    """
    samples = -(-work.global_batch_size // layout.data)
    room = work.max_tokens_per_gpu * layout.context // work.sequence_length
    count = -(-samples // room)
    return MicroBatches(count, -(-samples // count) * work.sequence_length / layout.context)


def refusals(shape: ModelShape, layout: Layout, work: Workload, cluster: Cluster) -> Iterator[str]:
    """Why a layout cannot be, apart from memory: flag, value, and what would be right."""
    t, p, c, e = layout.tensor, layout.pipeline, layout.context, layout.expert
    tensor, pipeline = f"--tensor-model-parallel-size {t}", f"--pipeline-model-parallel-size {p}"
    split = dict(_tensor_split(shape))
    for what, count in split.items():
        if count % t:
            common = _choices(math.gcd(*split.values()))
            yield f"{tensor} does not divide the {count} {what} of {shape.name}; use {common}"
    if shape.layers % p:
        yield f"{pipeline} does not divide the {shape.layers} layers of {shape.name}; use {_choices(shape.layers)}"
    if e > 1 and not shape.experts:
        yield f"--expert-model-parallel-size {e}: {shape.name} has no experts; use 1"
    elif e > 1 and shape.experts % e:
        yield (
            f"--expert-model-parallel-size {e} does not divide the {shape.experts} experts of {shape.name}; "
            f"use {_choices(shape.experts)}"
        )
    if layout.sequence_parallel and t == 1:
        yield "--sequence-parallel splits tokens over the tensor-parallel group, which has one rank; leave it out"
    if shape.experts and t > 1 and not layout.sequence_parallel:
        yield f"{tensor}: Megatron trains a mixture of experts under it only with --sequence-parallel"
    yield from _world(layout, cluster)
    if layout.gpus % (t * p * c) == 0:
        yield from _samples(layout, work)


def _tensor_split(shape: ModelShape) -> Iterator[tuple[str, int]]:
    yield "attention heads", shape.heads
    yield "KV heads", shape.kv_heads
    if not all(shape.sparse):
        yield "columns of a feed-forward block", shape.ffn
    if any(shape.sparse):
        yield "columns of an expert", shape.expert_ffn


def _world(layout: Layout, cluster: Cluster) -> Iterator[str]:
    model = layout.tensor * layout.pipeline * layout.context
    experts = layout.tensor * layout.pipeline * layout.expert
    if layout.gpus > cluster.gpus_per_node and layout.gpus % cluster.gpus_per_node:
        yield f"{layout.gpus} GPUs are no whole number of nodes of {cluster.gpus_per_node} (--num-gpus-per-node)"
    if layout.gpus % model:
        yield (
            f"TP {layout.tensor} x PP {layout.pipeline} x CP {layout.context} = {model} does not divide the "
            f"{layout.gpus} GPUs; use sizes whose product divides them"
        )
    if layout.expert > 1 and layout.gpus % experts:
        yield (
            f"TP {layout.tensor} x PP {layout.pipeline} x EP {layout.expert} = {experts} does not divide the "
            f"{layout.gpus} GPUs; experts are spread over the context- and data-parallel ranks"
        )


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
