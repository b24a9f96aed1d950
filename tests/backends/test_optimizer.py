"""The learning rate as a function of the update count, master weights, and clipping."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stacx_core import Args
from stacx_core.backends.optimizer import RoleOptimizer, learning_rate


class Weight(nn.Module):
    """One vector of weights."""

    def __init__(self, values: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))


@pytest.fixture
def build(host_args: Any) -> Any:
    return lambda **given: host_args(**{"lr": 1e-5, **given})


@pytest.mark.parametrize(
    ("style", "update", "expected"),
    [
        ("linear", 0, 1e-5),
        ("linear", 40, 6.0e-6),
        ("linear", 99, 1e-7),
        ("linear", 100, 0.0),
        ("linear", 130, 0.0),
        ("cosine", 0, 1e-5),
        ("cosine", 40, 6.545085e-6),
        ("cosine", 100, 0.0),
        ("constant", 99, 1e-5),
    ],
)
def test_the_rate_decays_over_a_hundred_updates(build: Any, style: str, update: int, expected: float) -> None:
    assert learning_rate(build(lr_decay_style=style), update, 100) == pytest.approx(expected, rel=1e-6, abs=1e-18)


def test_warm_up_then_decay_to_the_minimum(build: Any) -> None:
    args = build(lr=1.0, min_lr=0.2, lr_decay_style="linear", lr_warmup_iters=4)
    rates = [learning_rate(args, update, 12) for update in range(13)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])


def test_the_decay_may_end_before_the_run(build: Any) -> None:
    args = build(lr=1.0, lr_decay_style="linear", lr_decay_iters=4)
    assert [learning_rate(args, update, 100) for update in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 20),
    st.integers(1, 50),
    st.integers(0, 80),
    st.floats(0, 1),
)
def test_the_rate_stays_between_its_ends(style: Any, warmup: int, total: int, update: int, low: float) -> None:
    args = Args.of(lr=1.0, min_lr=low, lr_decay_style=style, lr_warmup_iters=warmup, lr_decay_iters=None)
    rate = learning_rate(args, update, total)
    assert min(low, 1 / max(warmup, 1)) - 1e-12 <= rate <= 1 + 1e-12


def descend(optimizer: RoleOptimizer, model: Weight, gradient: list[float], steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model.w.float() * torch.tensor(gradient)).sum().backward()
        optimizer.step(optimizer.gradient_norm(), 100)


def test_updates_too_small_for_bf16_add_up(build: Any) -> None:
    """At weight 1 the bf16 grid has a step of 1/128: thousand updates of 1e-5 each would all be rounded away."""
    model = Weight([1.0], torch.bfloat16)
    optimizer = RoleOptimizer(model, build(optimizer="sgd"))
    descend(optimizer, model, [1.0], steps=1000)
    assert model.w.dtype == torch.bfloat16
    assert model.w.item() == torch.tensor(0.99).bfloat16().item()


def test_gradients_of_micro_batches_are_summed_in_fp32(build: Any) -> None:
    """1 + 8 x 1/512 is 1 in bf16 when added one by one, and 1.015625 when added in fp32."""
    model = Weight([0.0], torch.bfloat16)
    optimizer = RoleOptimizer(model, build(optimizer="sgd"))
    for gradient in [1.0] + [1 / 512] * 8:
        (model.w * gradient).sum().backward()
    assert optimizer.gradient_norm() == 1.015625
    optimizer.zero_grad()
    assert optimizer.gradient_norm() == 0.0


@pytest.mark.parametrize(("limit", "expected"), [(1.0, [-0.6, -0.8]), (10.0, [-3.0, -4.0]), (0.0, [-3.0, -4.0])])
def test_the_global_norm_is_clipped(build: Any, limit: float, expected: list[float]) -> None:
    model = Weight([0.0, 0.0])
    optimizer = RoleOptimizer(model, build(lr=1.0, clip_grad=limit, optimizer="sgd"))
    descend(optimizer, model, [3.0, 4.0])
    assert model.w.tolist() == pytest.approx(expected, abs=1e-5)


def test_adam_follows_torchs_own(build: Any) -> None:
    model, other = Weight([1.0, -2.0]), Weight([1.0, -2.0])
    ours = RoleOptimizer(model, build(lr=0.1, weight_decay=0.01, clip_grad=0.0))
    reference = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.01)
    for gradient in ([1.0, 0.5], [-0.5, 2.0]):
        descend(ours, model, gradient)
        reference.zero_grad()
        (other.w * torch.tensor(gradient)).sum().backward()
        reference.step()
    torch.testing.assert_close(model.w, other.w)


def saved_and_loaded(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_optimizer_goes_on_bit_for_bit(build: Any, dtype: torch.dtype) -> None:
    args = build(lr=1e-3, lr_decay_style="linear")
    unbroken = Weight([1.0, -2.0], dtype)
    optimizer = RoleOptimizer(unbroken, args)
    descend(optimizer, unbroken, [1.0, 0.3], steps=3)
    stopped = Weight([0.0, 0.0], dtype)
    resumed = RoleOptimizer(stopped, args)
    resumed.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    with torch.no_grad():
        stopped.w.copy_(unbroken.w)
    assert resumed.updates == 3
    for weight, stepping in ((unbroken, optimizer), (stopped, resumed)):
        descend(stepping, weight, [0.2, -1.0], steps=3)
    assert torch.equal(unbroken.w, stopped.w)


def test_frozen_weights_are_left_out(build: Any) -> None:
    model = Weight([1.0])
    model.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = RoleOptimizer(model, build(lr=1.0, weight_decay=0.5, optimizer="sgd"))
    descend(optimizer, model, [1.0])
    assert model.frozen.item() == 1.0
    assert model.w.item() != 1.0
