"""Who shares what; groups and their nodes; how samples are cut."""

from __future__ import annotations

import pytest

from stacx_core.errors import ConfigError
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args
from stacx_core.planning.layout import Group, Layout
from stacx_core.planning.plan import Problem
from stacx_core.planning.work import MicroBatches, micro_batches


def test_processes_left_over_are_replicas() -> None:
    layout = Layout.over(12, tensor=2, context=2, sequence_parallel=True)
    assert layout == Layout(tensor=2, context=2, data=3, sequence_parallel=True)
    assert layout.world_size == 12


def test_processes_that_make_up_no_replica_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)6 process.* do not divide into replicas of 4.*use a multiple of 4"):
        Layout.over(6, tensor=2, pipeline=2)


def test_the_layout_of_knobs() -> None:
    args = Args({knob.name: knob.default for knob in HOST_KNOBS})
    assert Layout.of(args, 3) == Layout(data=3)
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 3, "context_parallel_size": 5}
    args = args.replace(**sizes, expert_model_parallel_size=4, sequence_parallel=True)
    assert Layout.of(args, 60) == Layout(2, 3, 5, 4, 2, sequence_parallel=True)
    args = args.replace(use_distributed_optimizer=True, gradient_checkpointing=True)
    assert Layout.of(args, 30) == Layout(2, 3, 5, 4, 1, True, True, True)


@pytest.mark.parametrize(("size", "tensor", "padded"), [(37, 1, 37), (37, 2, 38), (48, 4, 48), (49, 4, 52)])
def test_the_vocabulary_is_padded_to_equal_shares(size: int, tensor: int, padded: int) -> None:
    assert Layout(tensor=tensor).vocabulary(size) == padded


@pytest.mark.parametrize(
    ("group", "here", "crosses"),
    [(Group(4, 1), 4, False), (Group(8, 1), 8, False), (Group(16, 1), 8, True), (Group(4, 2), 4, False),
     (Group(8, 2), 4, True), (Group(2, 8), 1, True), (Group(1, 64), 1, False)],
)  # fmt: skip
def test_how_many_ranks_of_a_group_share_a_node_of_eight(group: Group, here: int, crosses: bool) -> None:
    assert (group.per_node(8), group.crosses(8)) == (here, crosses)


def test_groups_of_a_layout() -> None:
    """TP 2 x CP 2 x DP 2 x PP 2; experts EP 4 x 2 x PP 2."""
    groups = Layout(tensor=2, pipeline=2, context=2, expert=4, data=2).groups()
    assert groups == {
        "tensor": Group(2, 1),
        "context": Group(2, 2),
        "data": Group(4, 2),
        "expert": Group(4, 1),
        "expert data": Group(2, 4),
        "pipeline": Group(2, 8),
    }


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout(), MicroBatches(2, 16)), (Layout(data=2), MicroBatches(1, 16)), (Layout(data=4), MicroBatches(1, 8)),
     (Layout(context=2), MicroBatches(1, 16)), (Layout(data=3), MicroBatches(1, 16))],
)  # fmt: skip
def test_four_samples_of_eight_tokens_at_sixteen_a_gpu(
    layout: Layout, expected: MicroBatches, problem: Problem
) -> None:
    assert micro_batches(layout, problem.work) == expected
