"""Whitening: worked values, moments, constants, order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core import BatchError
from stacx_plugin_grpo.objectives import whiten


def test_worked_values() -> None:
    """Two responses with a masked token each, transformed with the statistics of the trained ones."""
    returns = [torch.tensor([0.948626, 0.963259, 0.98309, 0.99302, 0.998]), torch.tensor([-1.0, -1.0, 0.0])]
    masks = [torch.tensor([1, 1, 0, 1, 1]), torch.tensor([1, 1, 0])]
    whitened = whiten(returns, masks)
    assert (whitened.mean, whitened.variance) == pytest.approx((0.317151, 1.041269), abs=2e-6)
    assert whitened.values[0].tolist() == pytest.approx([0.618835, 0.633175, 0.652609, 0.66234, 0.667221], abs=2e-6)
    assert whitened.values[1].tolist() == pytest.approx([-1.290786, -1.290786, -0.310802], abs=2e-6)


def test_worked_values_of_a_centred_group() -> None:
    """Rewards 1, 0, 0, 1 minus their mean, at every token of responses of length 2, 3, 1 and 2."""
    lengths = [2, 3, 1, 2]
    rows = [torch.full((n,), a) for n, a in zip(lengths, [0.5, -0.5, -0.5, 0.5], strict=True)]
    whitened = whiten(rows, [torch.ones(n) for n in lengths])
    assert (whitened.mean, whitened.variance) == pytest.approx((0.0, 0.285714), abs=2e-6)
    assert [row[0].item() for row in whitened.values] == pytest.approx(
        [0.935414, -0.935414, -0.935414, 0.935414], abs=2e-6
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1e6])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_equal_advantages_become_exactly_zero(value: float, count: int) -> None:
    assert whiten([torch.full((count,), value)], [torch.ones(count)]).values[0].tolist() == [0.0] * count


def test_a_large_offset_costs_no_precision() -> None:
    """The deviations are taken before they are squared."""
    rows = [torch.tensor([4096.0, 4096.5, 4097.0])]
    assert whiten(rows, [torch.ones(3)]).values[0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)


@given(
    st.lists(st.floats(-4, 4, width=16), min_size=2, max_size=12).filter(lambda x: max(x) - min(x) > 0.1),
    st.randoms(use_true_random=False),
)
def test_mean_zero_variance_one_in_any_order(numbers: list[float], random: object) -> None:
    rows = [torch.tensor([x, 99.0]) for x in numbers]
    masks = [torch.tensor([1, 0])] * len(rows)
    whitened = torch.stack(whiten(rows, masks).values)[:, 0].double()
    assert whitened.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert whitened.var().item() == pytest.approx(1.0, abs=1e-4)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    again = torch.stack(whiten([rows[i] for i in order], masks).values)[:, 0].double()
    torch.testing.assert_close(again, whitened[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [[], [torch.ones(2)]])
def test_nothing_trained_is_refused(rows: list[torch.Tensor]) -> None:
    with pytest.raises(BatchError, match="cannot be whitened"):
        whiten(rows, [torch.zeros(2) for _ in rows])
