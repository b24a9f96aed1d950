"""What a layout is given to do, and the machine."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.planning.layout import Layout


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
