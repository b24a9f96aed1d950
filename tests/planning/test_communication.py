"""Bytes that a rank sends, on paper: 5 tokens, width 8, 2 layers, 2 bytes an element."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stacx_core.planning.communication import Traffic, combined, micro_batch_traffic, step_traffic, weight_sync
from stacx_core.planning.layout import Group, Layout
from stacx_core.planning.plan import Problem
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.work import Cluster

HIDDEN = 5 * 8 * 2


def sent(shape: ModelShape, layout: Layout, group: str, stage: int = 0) -> float:
    (found,) = [t for t in micro_batch_traffic(shape, layout, 5, 2, stage) if t.group == group]
    return found.sent


def test_one_gpu_sends_nothing(tiny: ModelShape) -> None:
    assert micro_batch_traffic(tiny, Layout(), 5, 2, 0) == []
    assert step_traffic(tiny, Layout(), 2, 0) == []


def test_tensor_parallelism(tiny: ModelShape) -> None:
    """Per layer two all-reduces forward and two back, each sending 2 x (t-1)/t = 1 buffer; the embedding and the output
    layer one each. Recomputing adds two per layer."""
    assert sent(tiny, Layout(tensor=2), "tensor") == (2 * 4 + 2) * HIDDEN
    assert sent(tiny, Layout(tensor=2, recompute=True), "tensor") == (2 * 6 + 2) * HIDDEN


def test_sequence_parallelism_gathers_each_input_once_more(tiny: ModelShape) -> None:
    """Half a buffer more for both inputs of both layers and that of the output layer."""
    layout = Layout(tensor=2, sequence_parallel=True)
    assert sent(tiny, layout, "tensor") == (2 * 4 + 2) * HIDDEN + 5 * HIDDEN / 2


def test_context_parallelism_gathers_keys_and_values(tiny: ModelShape) -> None:
    """K and V of 5 tokens: 5 x 2 x 2 x 2 elements, 80 bytes, to each other rank, forward and back, in both layers."""
    assert sent(tiny, Layout(context=2), "context") == 2 * 2 * 80
    assert sent(tiny, Layout(context=4), "context") == 2 * 2 * 80 * 3
    assert sent(tiny, Layout(context=2, recompute=True), "context") == 3 * 2 * 80


def test_experts_get_their_tokens_and_send_them_back(routed: ModelShape) -> None:
    """Two copies of each token, half of them elsewhere: a buffer each for dispatch and combine, forward and back."""
    assert sent(routed, Layout(expert=2, data=2), "expert") == 2 * 4 * HIDDEN


def test_experts_take_the_tokens_of_each_tensor_parallel_rank(routed: ModelShape) -> None:
    """Over the tensor group: attention 5 passes a layer, embedding 2 and output 3, of half a buffer each; nothing for
    the experts. To and from those go two copies of half the tokens, half of them elsewhere: half a buffer each time."""
    layout = Layout(tensor=2, expert=2, sequence_parallel=True)
    assert sent(routed, layout, "tensor") == (2 * 5 + 5) * HIDDEN / 2
    assert sent(routed, layout, "expert") == 2 * 4 * HIDDEN / 2


def test_a_stage_sends_to_its_neighbours(tiny: ModelShape) -> None:
    four = replace(tiny, sparse=(False,) * 4)
    stages = [sent(four, Layout(pipeline=4), "pipeline", stage) for stage in range(4)]
    assert stages == [HIDDEN, 2 * HIDDEN, 2 * HIDDEN, HIDDEN]
    halved = Layout(tensor=2, pipeline=4, sequence_parallel=True)
    assert sent(four, halved, "pipeline") == HIDDEN / 2


def test_gradients_are_reduced_once_per_step(tiny: ModelShape) -> None:
    """1,352 parameters over four ranks: 3/4 of 8 bytes each all-reduced, of 4 + 2 with the distributed optimizer."""
    (plain,) = step_traffic(tiny, Layout(data=4), 2, 0)
    (split,) = step_traffic(tiny, Layout(context=2, data=2, distributed_optimizer=True), 2, 0)
    assert (plain.kind, plain.sent) == ("all-reduce", 1352 * 8 * 3 / 4)
    assert (split.kind, split.sent) == ("reduce-scatter + all-gather", 1352 * 6 * 3 / 4)


def test_experts_are_reduced_over_their_own_group(routed: ModelShape) -> None:
    """EP 2 of 4 ranks: 648 dense parameters over four, 576 of experts over two. TP 2 leaves 376 dense ones over two,
    and the experts as they are."""
    found = {t.group: t.sent for t in step_traffic(routed, Layout(expert=2, data=4), 2, 0)}
    assert found == {"data": 648 * 8 * 3 / 4, "expert data": 576 * 8 / 2}
    layout = Layout(tensor=2, expert=2, data=2, sequence_parallel=True)
    found = {t.group: t.sent for t in step_traffic(routed, layout, 2, 0)}
    assert found == {"data": 376 * 8 / 2, "expert data": 576 * 8 / 2}


def test_copies_of_a_tied_embedding_add_their_gradients(tiny: ModelShape) -> None:
    tied = replace(tiny, tied=True, sparse=(False,) * 4)
    layout = Layout(pipeline=4)
    assert [[t.sent for t in step_traffic(tied, layout, 2, stage)] for stage in range(4)] == [[320.0], [], [], [320.0]]


@pytest.mark.parametrize(
    ("kind", "group", "link", "seconds"),
    [
        ("all-reduce", Group(4, 1), "intra-node", 2.0),
        ("all-reduce", Group(8, 1), "inter-node", 2.0),  # four ports of 1 GB/s
        ("all-reduce", Group(4, 2), "inter-node", 4.0),  # two
        ("all-reduce", Group(2, 4), "inter-node", 8.0),
        ("all-to-all", Group(4, 1), "intra-node", 2.0),
        ("all-to-all", Group(8, 1), "inter-node", 8 * 4 / 7),
        ("send", Group(2, 2), "intra-node", 2.0),
        ("send", Group(2, 4), "inter-node", 8.0),
    ],
)
def test_eight_gigabytes_at_four_within_and_one_between_nodes_of_four(
    kind: str, group: Group, link: str, seconds: float
) -> None:
    cluster = Cluster(gpus_per_node=4, intra_node_gbs=4.0, inter_node_gbs=1.0)
    traffic = Traffic("any", kind, group, 8e9)
    assert (traffic.link(cluster), traffic.seconds(cluster)) == (link, pytest.approx(seconds))


def test_equal_traffic_is_added_up() -> None:
    one = Traffic("tensor", "all-reduce", Group(2, 1), 3.0)
    assert combined(iter([one, Traffic("data", "send", Group(2, 1), 1.0), one]))[0].sent == 6.0


def test_weights_to_two_engines(problem: Problem) -> None:
    """1,352 parameters of two bytes; a TP 2 rank holds 16 + 576 / 2 of each layer and 88 more, and gathers the rest."""
    sync = weight_sync(problem.shape, Layout(tensor=2), 2, problem.cluster, engines=2)
    assert (sync.model, sync.sent, sync.gathered) == (2704, 5408, 2 * (1352 - (2 * 304 + 88)))
    assert sync.seconds == 2704 / 1e9
