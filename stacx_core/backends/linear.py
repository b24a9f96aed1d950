"""fp32 linear layers on AMD CPUs through oneDNN.

The MKL that torch links takes its AVX2 path there, whatever the CPU can do; oneDNN, which torch has too but uses for
lower precisions only, takes the widest. On an EPYC with AVX-512 the products of a large layer are about twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SMALLEST = 2**21
"""Multiplications from which on oneDNN's dearer call is worth it."""

MANY_ROWS, FEW_ROWS = 256, 16
"""oneDNN compiles and keeps a kernel for each number of rows it meets, so they are made multiples of these."""


def row_multiple(rows: int) -> int:
    """The number that so many rows should be a multiple of: a larger one from four times ``MANY_ROWS`` on."""
    return MANY_ROWS if rows >= 4 * MANY_ROWS else FEW_ROWS


def suits_onednn(model: nn.Module) -> bool:
    """Whether the model's linear layers run faster through oneDNN."""
    parameter = next(model.parameters())
    return parameter.device.type == "cpu" and parameter.dtype == torch.float32 and onednn_is_faster()


@cache
def onednn_is_faster() -> bool:
    """Whether this machine has an AMD CPU, and this torch the operator."""
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    return amd and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_onednn(model: nn.Module) -> None:
    """Let the plain linear layers of an fp32 model compute through oneDNN where that is faster."""
    if not suits_onednn(model):
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


class OneDnnLinear(nn.Linear):
    """``nn.Linear`` with the same weights and results, but for rounding."""

    def forward(self, input: Tensor) -> Tensor:
        """``[..., K]`` to ``[..., N]``."""
        if input.numel() * self.out_features < SMALLEST:
            return F.linear(input, self.weight, self.bias)
        apply: Callable[[Tensor, Tensor], Tensor] = _Product.apply
        rows = apply(input.reshape(-1, self.in_features), self.weight)
        output = rows.view(*input.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


class _Product(torch.autograd.Function):
    """``x w^T`` for ``x [M, K]`` and ``w [N, K]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_rows(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x = _by_rows(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        to_weight = _over_rows(gradient, x) if ctx.needs_input_grad[1] else None
        return to_x, to_weight


def _by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``x w^T``, block by block of rows."""
    sizes = _blocks(len(x))
    if len(sizes) == 1:
        return _product(x, weight, sizes[0])
    output = x.new_empty(len(x), len(weight))
    for part, block in zip(output.split(sizes), x.split(sizes), strict=True):
        part.copy_(_product(block, weight, len(block)))
    return output


def _over_rows(gradient: Tensor, x: Tensor) -> Tensor:
    """``g^T x``, summed over blocks of rows."""
    sizes = _blocks(len(x))
    pairs = zip(gradient.split(sizes), x.split(sizes), strict=True)
    return sum((_product(g.t(), block.t(), len(block)) for g, block in pairs), start=x.new_zeros(()))


def _blocks(rows: int) -> list[int]:
    """Sizes that add up to ``rows``: the largest one that has a kernel, and the rest."""
    whole = rows // row_multiple(rows) * row_multiple(rows)
    return [size for size in (whole, rows - whole) if size]


def _product(x: Tensor, weight: Tensor, rows: int) -> Tensor:
    """``x w^T`` of a block of so many rows; the rest, which may have any size, goes the way of all layers."""
    if rows % FEW_ROWS:
        return x @ weight.t()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product
