"""Models of which no shape is known."""

from __future__ import annotations

import pytest

from stacx_core.errors import ModelError
from stacx_core.planning.shape import load_shape, shape_of


def test_a_model_that_is_not_supported() -> None:
    with pytest.raises(ModelError, match="model_type 'mamba' is not supported; supported are llama, qwen2"):
        shape_of("m", {"model_type": "mamba"})


@pytest.mark.parametrize("field", ["attention_bias", "mlp_bias", "use_sliding_window"])
def test_a_config_that_the_backend_would_refuse(field: str) -> None:
    with pytest.raises(ModelError, match=f"supports a config with {field} False, this model's is True"):
        shape_of("m", {"model_type": "llama", field: True})


def test_a_config_with_a_number_missing() -> None:
    with pytest.raises(ModelError, match="config key 'hidden_size' is None; a positive integer is needed"):
        shape_of("m", {"model_type": "llama"})


def test_neither_a_folder_nor_a_well_known_name() -> None:
    with pytest.raises(ModelError, match=r"no qwen3-4/config.json.*did you mean 'qwen3-4b'"):
        load_shape("qwen3-4")
