"""Linear layers through oneDNN: the results of `nn.Linear`, whatever the number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stacx_core.backends import linear
from stacx_core.backends.linear import OneDnnLinear, use_onednn
from stacx_core.backends.model import load_model


def result(layer: nn.Linear, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The output, and the gradient of the input and of each parameter."""
    x = x.clone().requires_grad_()
    output = layer(x)
    output.backward(gradient)
    grads = [p.grad for p in layer.parameters() if p.grad is not None]
    assert x.grad is not None
    return [output.detach(), x.grad, *grads]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 96, 100, 256, 257, 768, 1100])
def test_outputs_and_gradients_are_those_of_the_plain_layer(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(96, 300, bias=bias)
    fast = nn.Linear(96, 300, bias=bias)
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = OneDnnLinear
    x, gradient = torch.randn(1, rows, 96), torch.randn(1, 300, rows).transpose(1, 2)
    for ours, expected in zip(result(fast, x, gradient), result(plain, x, gradient), strict=True):
        assert ours.shape == expected.shape
        assert float((ours - expected).norm()) <= 1e-6 * float(expected.norm())


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, OneDnnLinear), (torch.float64, nn.Linear)])
def test_only_fp32_models_are_changed(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, dtype: torch.dtype, kind: type
) -> None:
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    model = load_model(str(checkpoint), dtype, torch.device("cpu"))
    assert type(model.lm_head) is kind


def test_other_machines_keep_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: False)
    model = nn.Sequential(nn.Linear(2, 2))
    use_onednn(model)
    assert type(model[0]) is nn.Linear
