"""Tiny models of the digits, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stacx_plugin_diffusion.digits import write_digits_checkpoint
from stacx_plugin_diffusion.models import FlowModel, load_flow_model

TINY = {
    "small": {"layers": 1, "dim": 32},
    "sd3": {"num_layers": 1, "num_attention_heads": 2, "caption_projection_dim": 32},
    "flux": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2},
}


@pytest.fixture(scope="session")
def digits_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of an untrained model of each network."""
    root = tmp_path_factory.mktemp("digits")
    return {name: write_digits_checkpoint(root / name, name, **sizes) for name, sizes in TINY.items()}


@pytest.fixture(scope="session")
def digits_checkpoint(digits_checkpoints: dict[str, Path]) -> Path:
    """The smallest of them, a SmallDiT of one layer and width 32."""
    return digits_checkpoints["small"]


@pytest.fixture(params=list(TINY))
def network(request: pytest.FixtureRequest) -> str:
    """Each kind of network in turn."""
    return request.param


@pytest.fixture
def load() -> Callable[..., FlowModel]:
    """Load a checkpoint on the CPU, in fp32 unless told otherwise."""

    def run(folder: Path, dtype: torch.dtype = torch.float32) -> FlowModel:
        return load_flow_model(folder, dtype, "cpu")

    return run


@pytest.fixture
def velocities() -> Callable[..., Tensor]:
    """The velocities of two fixed latents at two noise levels, for two prompts."""

    def run(model: FlowModel, prompts: tuple[str, str] = ("three", "eight"), sigma: tuple[float, float] = (0.25, 0.8)):
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
        rows = model.encode(prompts)
        cond = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return model.predict_velocity(x, torch.tensor(sigma), cond)

    return run
