"""The numbers that most worked values start from, and ``close``: how far from six digits each precision may be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

CLOSE = {torch.float64: {"abs": 5e-7, "rel": 0}, torch.float32: {"abs": 1e-6, "rel": 0}}


@pytest.fixture(params=CLOSE, ids=["fp64", "fp32"])
def flow(request):
    """Two items of four dimensions: data, noise, levels, a velocity and an older one."""
    rows = {
        "x0": [[0.5, -1.0, 0.25, 0.0], [1.0, 0.5, -0.5, 2.0]],
        "noise": [[1.0, 0.5, -0.5, -1.0], [-1.0, 0.0, 1.0, 0.5]],
        "sigma": [0.25, 0.8],
        "velocity": [[0.4, 1.2, -0.7, -0.9], [-1.5, -0.6, 1.1, -1.0]],
        "old_velocity": [[0.45, 1.3, -0.6, -1.1], [-1.7, -0.5, 1.3, -1.3]],
    }
    return SimpleNamespace(
        **{name: torch.tensor(row, dtype=request.param) for name, row in rows.items()}, close=CLOSE[request.param]
    )


@pytest.fixture(params=CLOSE, ids=["fp64", "fp32"])
def step(request):
    """One step of one item of four dimensions, and the noise that it is taken with."""
    rows = {
        "x": [[0.3, -0.8, 1.1, 0.2]],
        "velocity": [[0.9, -0.4, 0.5, 1.3]],
        "noise": [[0.5, -1.0, 0.25, 2.0]],
        "sigma": [0.75],
        "sigma_next": [0.5],
    }
    return SimpleNamespace(
        **{name: torch.tensor(row, dtype=request.param) for name, row in rows.items()}, close=CLOSE[request.param]
    )
