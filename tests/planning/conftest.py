"""A model whose numbers add up on paper."""

from __future__ import annotations

import pytest

from stacx_core.planning.plan import Problem
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster, Workload


@pytest.fixture
def tiny() -> ModelShape:
    """Width 8, 4 query and 2 KV heads of width 2, feed-forward width 16, 10 tokens, 2 layers."""
    return ModelShape("tiny", 8, 4, 2, 2, 16, 10, (False, False))


@pytest.fixture
def routed() -> ModelShape:
    """The same with 4 experts of width 6, of which a token goes to 2."""
    return ModelShape("routed", 8, 4, 2, 2, 16, 10, (True, True), experts=4, experts_per_token=2, expert_ffn=6)


@pytest.fixture
def problem(tiny: ModelShape) -> Problem:
    """4 samples of 8 tokens, 16 tokens on a GPU at once; round numbers for the machine."""
    work = Workload(max_tokens_per_gpu=16, sequence_length=8, global_batch_size=4)
    cluster = Cluster(
        gpus_per_node=4,
        memory_gb=1.0,
        reserved_gb=0.0,
        intra_node_gbs=4.0,
        inter_node_gbs=1.0,
        peak_tflops=1.0,
        utilisation=0.5,
    )
    return Problem(tiny, work, cluster)
