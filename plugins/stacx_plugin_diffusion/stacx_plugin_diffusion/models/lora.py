"""Low-rank adapters, by peft (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stacx_core import ModelError
from stacx_plugin_diffusion.extras import require

if TYPE_CHECKING:
    from stacx_plugin_diffusion.models.flow_model import FlowModel

LORA_FOLDER = "lora"
WEIGHTS_FILE = "adapter_model.safetensors"
NAME = "default"
FILE_PREFIX = "base_model.model."
"""What peft puts before the names of a model's layers in its files."""

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
"""The attention of every network of this package, its prompt side included."""


def add_lora(model: FlowModel, rank: int, alpha: float, targets: Sequence[str] = LORA_TARGETS, seed: int = 0) -> None:
    """Freeze the network and add a trainable low-rank adapter, which changes nothing before training.

    Args:
        model: Is changed in place.
        rank: Of the update of each layer.
        alpha: The update is scaled by alpha / rank.
        targets: Ends of the names of linear layers; at least one must be there.
        seed: Of the adapter's random half, which is the same in every process.

    Raises:
        ModelError: There is an adapter already, no layer has such a name, or peft is not installed.
    """
    if has_lora(model):
        raise ModelError("the model has a LoRA adapter already; merge it before another is added")
    peft = require("peft", "diffusers", "LoRA", ModelError)
    _inject(model.network, peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets)), seed)


def has_lora(model: FlowModel) -> bool:
    """Whether the model has an adapter."""
    return any(".lora_" in name for name, _ in model.network.named_parameters())


def lora_rank(model: FlowModel) -> int:
    """The rank of the model's adapter; 0 without one."""
    return int(model.network.peft_config[NAME].r) if has_lora(model) else 0  # type: ignore[index,union-attr]


@contextmanager
def adapter_off(model: FlowModel) -> Iterator[None]:
    """The model without its adapter, bit for bit what it was before the adapter was added.

    Raises:
        ModelError: There is none, so that the model could not serve as its own reference.
    """
    layers = _layers(model.network)
    if not layers:
        raise ModelError("the model has no LoRA adapter to switch off; give the reference a checkpoint of its own")
    for layer in layers.values():
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.enable_adapters(True)


@torch.no_grad()
def merged_state(model: FlowModel) -> dict[str, Tensor]:
    """The state dict of the same model without an adapter, whose update is added to the weights in fp32."""
    state, _ = split_adapter(model.network.state_dict())
    for name, layer in _layers(model.network).items():
        weight = state[f"{name}.weight"]
        state[f"{name}.weight"] = (weight.float() + layer.get_delta_weight(NAME).float()).to(weight.dtype)
    return {f"network.{name}": tensor for name, tensor in state.items()}


def split_adapter(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights under their names without an adapter, and the adapter's own."""
    base = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if ".lora_" not in name}
    return base, {name: tensor for name, tensor in state.items() if ".lora_" in name}


def save_adapter(folder: Path, network: nn.Module, adapter: Mapping[str, Tensor]) -> None:
    """Write an adapter as peft does; without one, remove what an earlier checkpoint left there."""
    target = folder / LORA_FOLDER
    if not adapter:
        shutil.rmtree(target, ignore_errors=True)
        return
    config: Any = network.peft_config
    config[NAME].save_pretrained(str(target))
    tensors = {
        FILE_PREFIX + name.replace(f".{NAME}.", "."): tensor.detach().contiguous() for name, tensor in adapter.items()
    }
    save_file(tensors, target / WEIGHTS_FILE, metadata={"format": "pt"})


def load_adapter(folder: Path, network: nn.Module) -> None:
    """Add the adapter of a checkpoint's folder to a network, if there is one.

    Raises:
        ModelError: It does not fit the network or is damaged, or peft is not installed.
    """
    source = folder / LORA_FOLDER
    if not source.is_dir():
        return
    peft = require("peft", "diffusers", f"the LoRA adapter of {str(folder)!r}", ModelError)
    try:
        _inject(network, peft.LoraConfig.from_pretrained(str(source)), seed=0)
        found = load_file(source / WEIGHTS_FILE)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise ModelError(f"no usable LoRA adapter in {str(source)!r}: {error}") from error
    _, own = split_adapter(network.state_dict())
    for name, tensor in own.items():
        stored = found.get(FILE_PREFIX + name.replace(f".{NAME}.", "."))
        if stored is None or stored.shape != tensor.shape:
            shape = "is missing" if stored is None else f"has shape {list(stored.shape)}, not {list(tensor.shape)}"
            raise ModelError(f"{str(source)!r}: {name!r} {shape}")
        tensor.copy_(stored)


def _inject(network: nn.Module, config: Any, seed: int) -> None:
    peft = require("peft", "diffusers", "LoRA", ModelError)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(config, network, adapter_name=NAME)
        except ValueError as error:
            linear = {
                name.rpartition(".")[2] for name, layer in network.named_modules() if isinstance(layer, nn.Linear)
            }
            known = ", ".join(sorted(linear))
            raise ModelError(f"LoRA does not fit the network: {error}", f"its linear layers end in {known}") from error
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            # An optimizer's steps are lost in bf16.
            parameter.data = parameter.data.float()


def _layers(network: nn.Module) -> dict[str, Any]:
    """The layers that an adapter changes, by name."""
    return {name: layer for name, layer in network.named_modules() if hasattr(layer, "lora_A")}
