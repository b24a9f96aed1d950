"""The tiny model and prompts of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stacx_core.backends.model import load_model

PROMPTS = [[5, 12, 6, 13], [7], [3, 4, 12, 9, 13, 2, 8], [2, 2], [10, 11, 12]]


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Any:
    return load_model(str(checkpoint), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    return PROMPTS
