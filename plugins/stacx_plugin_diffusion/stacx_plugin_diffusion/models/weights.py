"""A network's folder: its config, and its weights in safetensors, as diffusers lays them out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stacx_core import ModelError

NETWORK_FOLDER = "transformer"
CONFIG_FILE = "config.json"
STEM = "diffusion_pytorch_model"


def save_network(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write config and weights, in files of at most 5 GB."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_torch_state_dict(tensors, folder, filename_pattern=f"{STEM}{{suffix}}.safetensors", metadata={"format": "pt"})


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a network's folder.

    Raises:
        ModelError: There is none, or it is no JSON object that names a class.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        found = ", ".join(sorted(child.name for child in folder.parent.iterdir())) or "nothing"
        raise ModelError(
            f"no {path.relative_to(folder.parent)} in {str(folder.parent)!r}, where there is {found}",
            f"give the folder of a diffusers pipeline, in which the denoiser is in {NETWORK_FOLDER}/",
        )
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is no JSON object: {error}") from error
    if not isinstance(config.get("_class_name"), str):
        raise ModelError(f"{path} names no class of a network under '_class_name'")
    return config


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a network's folder, whole or in shards.

    Raises:
        ModelError: A file is absent or damaged.
    """
    index = folder / f"{STEM}.safetensors.index.json"
    try:
        if index.exists():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        else:
            names = [f"{STEM}.safetensors"]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} is no index of weights: {error}") from error
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"{str(folder)!r} has no weights {name!r}; the checkpoint is not whole")
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{folder / name} is damaged: {error}") from error
    return tensors


def fill(network: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
    """Give a network, which may be on the meta device, its weights; more than it has are let be.

    Raises:
        ModelError: Some are missing, or have another shape.
    """
    wanted = network.state_dict()
    missing = sorted(wanted.keys() - weights.keys())
    if missing:
        raise ModelError(f"the checkpoint lacks {len(missing)} of {len(wanted)} weights, first {missing[0]!r}")
    for name, tensor in wanted.items():
        if weights[name].shape != tensor.shape:
            raise ModelError(f"{name!r} has shape {list(weights[name].shape)}, its config wants {list(tensor.shape)}")
    # Copies: what safetensors reads may lie in the file itself, which a later checkpoint overwrites.
    own = {name: weights[name].to(device=device, dtype=dtype, copy=True) for name in wanted}
    network.load_state_dict(own, assign=True)
