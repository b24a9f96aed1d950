"""Memory: on paper, against what torch saves for the backward pass, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from stacx_core.planning.layout import Layout
from stacx_core.planning.memory import buffers, layer_activations, logits, model_state, stage_activations
from stacx_core.planning.plan import Problem, fullest
from stacx_core.planning.shape import ModelShape, load_shape
from stacx_core.planning.work import Cluster, MicroBatches, Workload

BF16, FP32 = 2, 4
CLUSTER = Cluster()


class Norm(torch.autograd.Function):
    """RMSNorm as a fused kernel has it: the input and one number per row are kept."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


def layer(x: Tensor, shape: ModelShape, weights: dict[str, Tensor]) -> Tensor:
    """A decoder layer `[T, h] -> [T, h]` of fp32 operators, with positions left out: rotating keeps nothing."""
    tokens, (a, k, d) = len(x), (shape.heads, shape.kv_heads, shape.head_dim)
    q, key, value = (Norm.apply(x) @ weights["qkv"]).split([a * d, k * d, k * d], dim=-1)
    heads = [part.view(tokens, -1, d) for part in (q, key, value)]
    if shape.qk_norm:
        heads[:2] = [Norm.apply(part) for part in heads[:2]]
    q, key, value = (part.transpose(0, 1)[None] for part in heads)
    key, value = (part.repeat_interleave(a // k, 1) for part in (key, value)) if a != k else (key, value)
    attended = F.scaled_dot_product_attention(q, key, value, is_causal=True)[0].transpose(0, 1).reshape(tokens, -1)
    x = x + attended @ weights["out"]
    gate, up = (Norm.apply(x) @ weights["fc1"]).chunk(2, dim=-1)
    return x + (F.silu(gate) * up) @ weights["fc2"]


@pytest.mark.parametrize("qk_norm", [False, True])
def test_torch_keeps_for_the_backward_pass_what_the_formula_says(qk_norm: bool) -> None:
    """Every storage that autograd keeps is counted once, weights left out."""
    shape = ModelShape("one", 64, 4, 4, 16, 96, 10, (False,), qk_norm=qk_norm)
    sizes = {"qkv": (64, 192), "out": (64, 64), "fc1": (64, 192), "fc2": (96, 64)}
    weights = {name: torch.randn(size, requires_grad=True) for name, size in sizes.items()}
    known = {weight.untyped_storage().data_ptr() for weight in weights.values()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known and tensor.dtype == torch.float32:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = layer(torch.randn(32, 64, requires_grad=True), shape, weights)
    assert out.grad_fn is not None
    assert sum(kept.values()) == layer_activations(shape, Layout(), 32, FP32)


def test_a_layer_on_paper(tiny: ModelShape) -> None:
    """Elements per token: 4 x 8 for norms and inputs, (2 x 4 + 2 x 2) x 2 = 24 for attention, 4 x 16 = 64 for the
    feed-forward block: 120, and 4 + 2 fp32 numbers; TP 2 halves attention and feed-forward, SP the rest."""
    assert layer_activations(tiny, Layout(), 10, BF16) == 10 * (2 * 120 + 4 * 6)
    assert layer_activations(tiny, Layout(tensor=2), 10, BF16) == 10 * (2 * (32 + 44) + 4 * 4)
    assert layer_activations(tiny, Layout(tensor=2, sequence_parallel=True), 10, BF16) == 10 * (2 * 60 + 4 * 3)


def test_context_parallelism_keeps_gathered_keys_and_values(tiny: ModelShape) -> None:
    """At CP 4 there are three more times 2 x 2 x 2 elements of K and V per token of the rank."""
    more = layer_activations(tiny, Layout(context=4), 1, BF16) - layer_activations(tiny, Layout(), 1, BF16)
    assert more == 3 * 8 * 2


def test_a_mixture_of_experts_on_paper(routed: ModelShape) -> None:
    """2 routed copies of 8 in and out and 4 x 6 inside: 2 x 40 elements in place of 64, and 2 x 4 fp32 numbers. At TP 2
    a rank has half of everything: 28 elements of attention and norms, and one whole copy of 40 for each token."""
    assert layer_activations(routed, Layout(), 1, BF16, sparse=True) == 2 * (56 + 80) + 4 * (6 + 8)
    halved = Layout(tensor=2, expert=2, sequence_parallel=True)
    assert layer_activations(routed, halved, 1, BF16, sparse=True) == 2 * (28 + 40) + 4 * (3 + 4)


def test_the_paper_of_korthikanti_is_met_where_the_models_agree() -> None:
    """Its 34 s b h have, per token and layer, 11 h for attention (of which 1 is a dropout mask), 19 h for the
    feed-forward block of width 4 h (1 a mask, 16 inside it) and 4 h for norms. Ours, with `k = a`, `d = h / a`, has no
    masks, keeps the attention's output once, and four tensors of width f, 8 f bytes, inside the block: 32 h."""
    h, heads = 4096, 32
    shape = ModelShape("gpt", h, heads, heads, h // heads, 4 * h, 10, (False,))
    statistics = 4 * (heads + 2)
    assert layer_activations(shape, Layout(), 1, BF16) - statistics == (34 - 2 - 16 + 32) * h


@pytest.mark.parametrize(
    ("element", "distributed", "expected"),
    [(BF16, False, (2, 4, 12)), (BF16, True, (2, 4, 3)), (FP32, False, (4, 4, 8)), (FP32, True, (4, 4, 2))],
)
def test_bytes_per_parameter(tiny: ModelShape, element: int, distributed: bool, expected: tuple[int, ...]) -> None:
    """1,352 parameters on each of four data-parallel ranks."""
    state = model_state(tiny, Layout(data=4, distributed_optimizer=distributed), Workload(element=element), 0)
    assert state == tuple(1352 * each for each in expected)


def test_experts_are_split_over_their_own_data_parallel_group(routed: ModelShape) -> None:
    """EP 2 on 4 ranks: 648 parameters in four shares, and half of 1,152 expert ones in two; at TP 2 376 in two, and the
    experts as before."""
    layout = Layout(expert=2, data=4, distributed_optimizer=True)
    assert model_state(routed, layout, Workload(), 0) == (2 * 1224, 4 * 1224, 12 * (648 / 4 + 576 / 2))
    layout = Layout(tensor=2, expert=2, data=2, sequence_parallel=True, distributed_optimizer=True)
    assert model_state(routed, layout, Workload(), 0) == (2 * 952, 4 * 952, 12 * (376 / 2 + 576 / 2))


def test_a_stage_holds_the_micro_batches_in_flight(tiny: ModelShape) -> None:
    """PP 2: the first stage holds two micro-batches of its layer, or only as many as there are; the last holds one, and
    the inputs of final norm and output layer. Recomputing keeps 10 x 8 elements per layer, and one layer in full."""
    layout, work, one = Layout(pipeline=2), Workload(), 10 * 264
    assert stage_activations(tiny, layout, work, MicroBatches(4, 10), 0) == 2 * one
    assert stage_activations(tiny, layout, work, MicroBatches(1, 10), 0) == one
    assert stage_activations(tiny, layout, work, MicroBatches(4, 10), 1) == one + 2 * 160
    assert stage_activations(tiny, replace(layout, recompute=True), work, MicroBatches(4, 10), 0) == 2 * 160 + one


def test_logits_on_paper(tiny: ModelShape) -> None:
    """Five tokens of ten logits and their gradients, two bytes each; half of it at TP 2."""
    assert logits(tiny, Layout(), 5, BF16) == 200
    assert logits(tiny, Layout(tensor=2), 5, BF16) == 100


def test_buffers_on_paper(routed: ModelShape) -> None:
    """Five tokens of width 8: gathered input 40; K and V of both ranks 2 x 5 x 2 x 4; stage in and out 2 x 40;
    two routed copies there and back 2 x 2 x 40 elements."""
    assert buffers(routed, Layout(), 5, BF16) == 0
    assert buffers(routed, Layout(context=2), 5, BF16) == 2 * 80
    assert buffers(routed, Layout(pipeline=2), 5, BF16) == 2 * 80
    assert buffers(routed, Layout(expert=2, data=2), 5, BF16) == 2 * 160
    assert buffers(routed, Layout(tensor=2, sequence_parallel=True), 5, BF16) == 2 * 40


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    recompute=st.booleans(),
    distributed=st.booleans(),
)
def test_memory_falls_when_the_tensor_group_grows(
    tensor: int, pipeline: int, context: int, recompute: bool, distributed: bool
) -> None:
    problem = Problem(load_shape("qwen3-4b"), Workload(), CLUSTER)
    layouts = [
        Layout.over(
            64,
            tensor=t,
            pipeline=pipeline,
            context=context,
            sequence_parallel=t > 1,
            distributed_optimizer=distributed,
            recompute=recompute,
        )
        for t in (tensor, 2 * tensor)
    ]
    less, more = (fullest(problem, layout)[1].total for layout in reversed(layouts))
    assert less < more


@given(tensor=st.sampled_from([1, 2, 4, 8]), recompute=st.booleans(), data=st.sampled_from([2, 4, 8]))
def test_memory_falls_with_each_switch(tensor: int, recompute: bool, data: int) -> None:
    problem = Problem(load_shape("qwen3-32b"), Workload(), CLUSTER)
    base = Layout(tensor, data=data, recompute=recompute)
    total = fullest(problem, base)[1].total
    assert fullest(problem, replace(base, distributed_optimizer=True))[1].total < total
    if not recompute:
        assert fullest(problem, replace(base, recompute=True))[1].total < total
