"""Checkpoints that do not belong to the model that their config describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stacx_core.errors import ModelError
from tiny_models import make

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.conversion.loading import load
from stacx_core.planning.layout import Layout


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[Callable[[dict[str, Tensor]], Any]], tuple[Any, str]]:
    """Change the weights of a saved model; returns its config and folder."""

    def change(how: Callable[[dict[str, Tensor]], Any]) -> tuple[Any, str]:
        model = make("llama", tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        how(tensors)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return model.config, str(tmp_path)

    return change


def refuse(given: tuple[Any, str], message: str, head: str = "lm", **options: Any) -> None:
    config, folder = given
    stage: Any = SimpleNamespace(head=head)
    with pytest.raises(ModelError, match=message):
        load(stage, config, Layout(), folder, **options)


def test_a_missing_weight_is_named(broken: Any) -> None:
    refuse(
        broken(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")), r"lacks 1 weights, first 'model\.layers\.1\.mlp"
    )


def test_a_weight_without_a_place_is_named(broken: Any) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    refuse(
        broken(lambda t: t.update({name: torch.zeros(32)})), "1 weights that its config gives no place, first .*bias"
    )


def test_a_weight_of_another_shape_is_named(broken: Any) -> None:
    given = broken(lambda t: t.update({"model.norm.weight": torch.zeros(3)}))
    refuse(given, r"'model\.norm\.weight' has shape \(3,\), its config wants \(32,\)")


def test_a_scalar_head_must_be_there_when_asked_for(broken: Any) -> None:
    refuse(broken(lambda t: None), "no trained scalar head", "scalar", fresh_head=False)
