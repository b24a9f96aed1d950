"""Layouts that cannot be, with the flag, the value and the choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacx_core.errors import ConfigError
from stacx_core.planning.fit import refusals, warnings
from stacx_core.planning.layout import Layout
from stacx_core.planning.plan import Problem, fullest
from stacx_core.planning.refusal import check
from stacx_core.planning.shape import ModelShape, load_shape
from stacx_core.planning.work import Cluster, Workload

REFUSED = {
    "heads": (Layout(tensor=3), "--tensor-model-parallel-size 3 does not divide the 4 attention heads of"),
    "KV heads": (Layout(tensor=4), "--tensor-model-parallel-size 4 does not divide the 2 KV heads of"),
    "tokens": (
        Layout(tensor=8),
        "--tensor-model-parallel-size 8 leaves a process without any of the 10 tokens of routed",
    ),
    "layers": (Layout(pipeline=3), "--pipeline-model-parallel-size 3 does not divide the 2 layers of"),
    "experts": (Layout(expert=3, data=3), "--expert-model-parallel-size 3 does not divide the 4 experts of routed"),
    "experts under TP": (
        Layout(tensor=2, expert=2),
        "--tensor-model-parallel-size 2 needs --sequence-parallel and --expert-model-parallel-size above 1 for the",
    ),
    "all experts under TP": (Layout(tensor=2, sequence_parallel=True), "which are whole on the process that has them"),
    "sequence parallel alone": (Layout(data=2, sequence_parallel=True), "--sequence-parallel splits tokens over the"),
    "processes for experts": (
        Layout(pipeline=2, expert=4, data=2),
        "--expert-model-parallel-size 4 does not divide the 2 processes of a pipeline stage (TP 1 x CP 1 x DP 2), over "
        "which experts are spread; use 1, 2",
    ),
    "nodes": (Layout(data=6), "6 GPUs are no whole number of nodes of 4 (--num-gpus-per-node)"),
    "samples": (Layout(data=8), "8 data-parallel ranks share --global-batch-size 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(name: str, routed: ModelShape, problem: Problem) -> None:
    layout, message = REFUSED[name]
    assert any(message in reason for reason in refusals(routed, layout, problem.work, problem.cluster))


def test_experts_of_a_model_without_any(problem: Problem) -> None:
    with pytest.raises(ConfigError, match="--expert-model-parallel-size 2: tiny has no experts; use 1"):
        check(problem, Layout(expert=2, data=2))


def test_a_sample_that_fits_into_no_micro_batch(problem: Problem) -> None:
    long = replace(problem, work=replace(problem.work, sequence_length=40))
    with pytest.raises(ConfigError, match=r"longer than --max-tokens-per-gpu 16 x CP 1 = 16; .*-size 3 or more"):
        check(long, Layout())


def test_every_reason_is_given(problem: Problem) -> None:
    with pytest.raises(ConfigError, match="4 attention heads") as caught:
        check(problem, Layout(tensor=3, pipeline=3))
    assert any("does not divide the 2 layers" in hint for hint in caught.value.hints)


def test_a_tensor_group_wider_than_a_node_is_warned_of(problem: Problem) -> None:
    (warning,) = warnings(Layout(tensor=8), problem.cluster)
    assert "--tensor-model-parallel-size 8 is wider than a node of 4 GPUs" in warning
    assert list(warnings(Layout(tensor=4, data=2), problem.cluster)) == []


def test_too_much_memory_names_the_largest_part_and_what_fits(problem: Problem) -> None:
    """1,352 parameters need 24,336 bytes, activations of 8 tokens 4,480 and logits 320. The distributed optimizer
    leaves an eighth of 16,224 bytes."""
    work, cluster = replace(problem.work, global_batch_size=8), replace(problem.cluster, memory_gb=20e-6)
    small = replace(problem, work=work, cluster=cluster)
    assert fullest(small, Layout(data=8))[1].total == 24336 + 4480 + 320
    assert fullest(small, Layout(data=8, distributed_optimizer=True))[1].total == 24336 - 16224 * 7 / 8 + 4800
    with pytest.raises(ConfigError, match=r"the largest part are optimizer states with 0\.0 GB") as caught:
        check(small, Layout(data=8))
    assert caught.value.hints[0].startswith("with --use-distributed-optimizer it needs ")
    check(small, Layout(data=8, distributed_optimizer=True))


def test_what_fits_may_take_several_changes() -> None:
    problem = Problem(load_shape("qwen3-235b-a22b"), Workload(), Cluster())
    with pytest.raises(ConfigError, match="the largest part are optimizer states") as caught:
        check(problem, Layout(tensor=4, pipeline=2, expert=4, data=8, sequence_parallel=True))
    assert caught.value.hints == ("on 64 GPU(s) TP4 PP2 EP32 DP8 SP recompute would fit with 78.6 GB",)
