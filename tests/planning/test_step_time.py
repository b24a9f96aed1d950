"""The time of a step on paper, the search for layouts, and what scaling promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.errors import ConfigError
from stacx_core.planning.layout import Layout
from stacx_core.planning.plan import Problem, fits, predict
from stacx_core.planning.refusal import check
from stacx_core.planning.search import GPU_COUNTS, candidates, scaling, search
from stacx_core.planning.shape import ModelShape, load_shape
from stacx_core.planning.step_time import layer_flops, model_flops, stage_flops, step_time
from stacx_core.planning.work import Cluster, Workload

LAYER = 2 * 576 + 2 * 4 * 2 * 8
"""Operations per token: two for each of 576 weights, and 2 x 4 heads x 2 wide x 8 tokens of a sample."""


def test_operations_on_paper(tiny: ModelShape, problem: Problem) -> None:
    assert layer_flops(tiny, 8, sparse=False) == LAYER == 1280
    step = 3 * (2 * LAYER + 2 * 80) * 4 * 8
    assert model_flops(tiny, problem.work) == step
    assert stage_flops(tiny, Layout(), 32, 8, 0) == step
    assert stage_flops(tiny, Layout(recompute=True), 32, 8, 0) == step + 2 * LAYER * 32


def test_a_token_meets_its_own_experts(routed: ModelShape) -> None:
    """A router of 32 and two experts of 144 in place of 384."""
    assert layer_flops(routed, 8, sparse=True) == LAYER - 2 * 384 + 2 * (32 + 288)


def test_six_operations_per_parameter_and_token() -> None:
    """Kaplan et al. 2020: short samples cost about 6 N each token; the embedding is no product, and is tied here."""
    shape, work = load_shape("qwen3-4b"), Workload(sequence_length=1, global_batch_size=1)
    assert model_flops(shape, work) == pytest.approx(6 * 4_022_468_096, rel=1e-3)


def test_compute_at_half_a_teraflop(problem: Problem) -> None:
    """One GPU has two micro-batches of 16 tokens."""
    time = step_time(problem.shape, Layout(), problem.work, problem.cluster)
    assert time.compute == pytest.approx(3 * (2 * LAYER + 160) * 32 / 0.5e12)
    assert (time.exchange, time.reduction, time.bubble) == (0, 0, 0)


def test_the_bubble_of_equal_stages() -> None:
    """Narayanan et al. 2021: p - 1 micro-batches in m; the output layer is made negligible."""
    shape = ModelShape("deep", 1024, 8, 8, 128, 4096, 1, (False,) * 4)
    work = Workload(max_tokens_per_gpu=64, sequence_length=64, global_batch_size=8)
    fast = Cluster(intra_node_gbs=1e9, inter_node_gbs=1e9)
    time = step_time(shape, Layout(pipeline=4), work, fast)
    assert time.bubble / time.compute == pytest.approx(3 / 8, rel=1e-3)


def test_the_slowest_stage_sets_the_pace(problem: Problem) -> None:
    """The last of two has the output layer; the other is waited for once."""
    layout = Layout(pipeline=2)
    one, two = (stage_flops(problem.shape, layout, 16, 8, stage) / 0.5e12 for stage in (0, 1))
    time = step_time(problem.shape, layout, problem.work, problem.cluster)
    assert time.compute == pytest.approx(2 * two)
    assert time.total == pytest.approx(2 * (two + 256 / 4e9) + one + 256 / 4e9)


def test_overlap_hides_its_share_of_the_reduction(problem: Problem) -> None:
    half = replace(problem.work, overlap=0.5)
    full, hidden = (step_time(problem.shape, Layout(data=4), w, problem.cluster) for w in (problem.work, half))
    assert full.reduction == pytest.approx(1352 * 8 * 3 / 4 / 4e9)
    assert hidden.reduction == full.reduction / 2
    assert hidden.traffic == full.traffic


def test_utilisation_and_tokens_per_second_agree(problem: Problem) -> None:
    plan = predict(problem, Layout())
    assert plan.tokens_per_second == pytest.approx(32 / plan.time.total)
    assert plan.model_utilisation == pytest.approx(0.5)


@pytest.mark.parametrize("gpus", [4, 32])
def test_the_search_returns_what_check_accepts_and_nothing_is_faster(gpus: int) -> None:
    problem = Problem(load_shape("qwen3-4b"), Workload(), Cluster())
    plans = search(problem, gpus, 5, {})
    assert [check(problem, plan.layout) for plan in plans] == plans
    others = [predict(problem, x) for x in candidates(problem, gpus, {}) if fits(problem, x)]
    assert plans[0].tokens_per_second == max(plan.tokens_per_second for plan in others)


def test_a_switch_that_is_given_is_kept() -> None:
    problem = Problem(load_shape("qwen3-4b"), Workload(), Cluster())
    assert all(plan.layout.recompute for plan in search(problem, 8, 20, {"recompute": True}))


def test_too_few_gpus_are_refused_with_enough() -> None:
    problem = Problem(load_shape("qwen3-32b"), Workload(), Cluster())
    with pytest.raises(ConfigError, match=r"no layout of qwen3-32b on 2 GPU.* comes closest with") as caught:
        search(problem, 2, 1, {})
    assert caught.value.hints == ("8 GPUs are enough",)


def test_where_no_layout_is_possible_a_reason_is_given(problem: Problem) -> None:
    with pytest.raises(ConfigError, match=r"on 6 GPU.* possible: 6 GPUs are no whole number of nodes of 4"):
        search(problem, 6, 1, {})


def test_scaling_is_measured_against_the_fewest_gpus_that_fit(problem: Problem) -> None:
    rows = scaling(lambda gpus: check(problem, Layout(data=gpus)))
    assert [row.gpus for row in rows] == list(GPU_COUNTS)
    assert rows[0].efficiency == 1
    assert rows[3].plan is None
    assert "8 data-parallel ranks share --global-batch-size 4" in rows[3].reason
    plans = [row.plan for row in rows[:2]]
    assert plans[0] is not None
    assert plans[1] is not None
    assert rows[1].efficiency == pytest.approx(plans[0].time.total / plans[1].time.total / 2)


@given(data=st.sampled_from([1, 2, 4, 8]), inter=st.floats(1, 400), overlap=st.floats(0, 1))
def test_more_gpus_are_faster_and_less_efficient(data: int, inter: float, overlap: float) -> None:
    """The same step on twice as many data-parallel ranks takes less time, but not half."""
    problem = Problem(load_shape("qwen3-4b"), Workload(overlap=overlap), Cluster(inter_node_gbs=inter))
    layout = Layout(8, sequence_parallel=True, distributed_optimizer=True)
    few, many = (predict(problem, replace(layout, data=d)).time.total for d in (data, 2 * data))
    assert few / 2 * 0.999 < many < few
