"""Layouts that cannot be, with the flag, the value and the choices; groups and their nodes; how samples are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacx_core.errors import ConfigError, ModelError
from stacx_core.planning.layout import (
    Cluster,
    Group,
    Layout,
    MicroBatches,
    Workload,
    micro_batches,
    refusals,
    warnings,
)
from stacx_core.planning.plan import Problem, fullest
from stacx_core.planning.refusal import check
from stacx_core.planning.shape import ModelShape, load_shape, shape_of

DEFAULT = Cluster()

REFUSED = {
    "heads": (Layout(3, tensor=3), "--tensor-model-parallel-size 3 does not divide the 4 attention heads of"),
    "KV heads": (Layout(4, tensor=4), "--tensor-model-parallel-size 4 does not divide the 2 KV heads of"),
    "expert columns": (
        Layout(4, tensor=4, sequence_parallel=True),
        "--tensor-model-parallel-size 4 does not divide the 6 columns of an expert of routed; use 1, 2",
    ),
    "layers": (Layout(3, pipeline=3), "--pipeline-model-parallel-size 3 does not divide the 2 layers of"),
    "experts": (Layout(3, expert=3), "--expert-model-parallel-size 3 does not divide the 4 experts of routed"),
    "experts under TP": (Layout(2, tensor=2), "only with --sequence-parallel"),
    "sequence parallel alone": (Layout(2, sequence_parallel=True), "--sequence-parallel splits tokens over the"),
    "GPUs": (Layout(2, pipeline=2, context=2), "TP 1 x PP 2 x CP 2 = 4 does not divide the 2 GPUs"),
    "GPUs for experts": (Layout(2, expert=4), "TP 1 x PP 1 x EP 4 = 4 does not divide the 2 GPUs"),
    "nodes": (Layout(6), "6 GPUs are no whole number of nodes of 4 (--num-gpus-per-node)"),
    "samples": (Layout(8), "8 data-parallel ranks share --global-batch-size 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(name: str, routed: ModelShape, problem: Problem) -> None:
    layout, message = REFUSED[name]
    assert any(message in reason for reason in refusals(routed, layout, problem.work, problem.cluster))


def test_experts_of_a_model_without_any(problem: Problem) -> None:
    with pytest.raises(ConfigError, match="--expert-model-parallel-size 2: tiny has no experts; use 1"):
        check(problem, Layout(2, expert=2))


def test_a_sample_that_fits_into_no_micro_batch(problem: Problem) -> None:
    long = replace(problem, work=replace(problem.work, sequence_length=40))
    with pytest.raises(ConfigError, match=r"longer than --max-tokens-per-gpu 16 x CP 1 = 16; .*-size 3 or more"):
        check(long, Layout(1))


def test_every_reason_is_given(problem: Problem) -> None:
    with pytest.raises(ConfigError, match="4 attention heads") as caught:
        check(problem, Layout(9, tensor=3, pipeline=3))
    assert any("does not divide the 2 layers" in hint for hint in caught.value.hints)


def test_a_tensor_group_wider_than_a_node_is_warned_of(problem: Problem) -> None:
    (warning,) = warnings(Layout(8, tensor=8), problem.cluster)
    assert "--tensor-model-parallel-size 8 is wider than a node of 4 GPUs" in warning
    assert list(warnings(Layout(8, tensor=4), problem.cluster)) == []


def test_too_much_memory_names_the_largest_part_and_what_fits(problem: Problem) -> None:
    """1,352 parameters need 24,336 bytes, activations of 8 tokens 4,480 and logits 320. The distributed optimizer
    leaves an eighth of 16,224 bytes."""
    work, cluster = replace(problem.work, global_batch_size=8), replace(problem.cluster, memory_gb=20e-6)
    small = replace(problem, work=work, cluster=cluster)
    assert fullest(small, Layout(8))[1].total == 24336 + 4480 + 320
    assert fullest(small, Layout(8, distributed_optimizer=True))[1].total == 24336 - 16224 * 7 / 8 + 4800
    with pytest.raises(ConfigError, match=r"the largest part are optimizer states with 0\.0 GB") as caught:
        check(small, Layout(8))
    assert caught.value.hints[0].startswith("with --use-distributed-optimizer it needs ")
    check(small, Layout(8, distributed_optimizer=True))


def test_what_fits_may_take_several_changes() -> None:
    problem = Problem(load_shape("qwen3-235b-a22b"), Workload(), DEFAULT)
    with pytest.raises(ConfigError, match="the largest part are activations") as caught:
        check(problem, Layout(64, tensor=4, pipeline=2, expert=4, sequence_parallel=True))
    assert caught.value.hints == ("on 64 GPU(s) TP4 PP2 EP8 DP8 SP recompute would fit with 79.0 GB",)


@pytest.mark.parametrize(
    ("group", "here", "crosses"),
    [(Group(4, 1), 4, False), (Group(8, 1), 8, False), (Group(16, 1), 8, True), (Group(4, 2), 4, False),
     (Group(8, 2), 4, True), (Group(2, 8), 1, True), (Group(1, 64), 1, False)],
)  # fmt: skip
def test_how_many_ranks_of_a_group_share_a_node_of_eight(group: Group, here: int, crosses: bool) -> None:
    assert (group.per_node(8), group.crosses(8)) == (here, crosses)


def test_groups_of_a_layout() -> None:
    """TP 2 x CP 2 x DP 2 x PP 2; experts TP 2 x EP 4 x 1 x PP 2."""
    groups = Layout(16, tensor=2, pipeline=2, context=2, expert=4).groups()
    assert groups == {
        "tensor": Group(2, 1),
        "context": Group(2, 2),
        "data": Group(4, 2),
        "expert": Group(4, 2),
        "expert data": Group(1, 8),
        "pipeline": Group(2, 8),
    }


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout(1), MicroBatches(2, 16)), (Layout(2), MicroBatches(1, 16)), (Layout(4), MicroBatches(1, 8)),
     (Layout(2, context=2), MicroBatches(1, 16)), (Layout(3), MicroBatches(1, 16))],
)  # fmt: skip
def test_four_samples_of_eight_tokens_at_sixteen_a_gpu(
    layout: Layout, expected: MicroBatches, problem: Problem
) -> None:
    assert micro_batches(layout, problem.work) == expected


def test_a_model_that_is_not_supported() -> None:
    with pytest.raises(ModelError, match="model_type 'mamba' is not supported; supported are llama, qwen2"):
        shape_of("m", {"model_type": "mamba"})


def test_a_config_with_a_number_missing() -> None:
    with pytest.raises(ModelError, match="config key 'hidden_size' is None; a positive integer is needed"):
        shape_of("m", {"model_type": "llama"})


def test_neither_a_folder_nor_a_well_known_name() -> None:
    with pytest.raises(ModelError, match=r"no qwen3-4/config.json.*did you mean 'qwen3-4b'"):
        load_shape("qwen3-4")
