"""From a checkpoint's folder to its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stacx_core import ModelError, nearest
from stacx_plugin_diffusion.models.codecs import load_codec
from stacx_plugin_diffusion.models.flow_model import FlowModel, FlowSettings
from stacx_plugin_diffusion.models.lora import load_adapter
from stacx_plugin_diffusion.models.networks import NETWORKS
from stacx_plugin_diffusion.models.prompts import load_prompts
from stacx_plugin_diffusion.models.weights import NETWORK_FOLDER, fill, read_config, read_weights

PROMPT_WIDTHS = ("prompt_dim", "joint_attention_dim", "pooled_dim", "pooled_projection_dim")
"""Of prompt tokens and of the pooled prompt, as configs call them."""


def load_flow_model(checkpoint: str | Path, dtype: torch.dtype, device: torch.device | str) -> FlowModel:
    """The model of a folder in the layout of a diffusers pipeline, with its LoRA adapter where it has one.

    The denoiser is in ``transformer/``. Prompts are encoded by the table of ``prompts.json`` and
    ``prompts.safetensors`` where they are there, else by the pipeline's own text encoders; latents are decoded by
    ``vae/`` where it is there, else they are pixels from -1 to 1. Text encoders and VAE are loaded on their first use.

    Args:
        checkpoint: The folder.
        dtype: Of network, text encoders and VAE; an adapter is fp32.
        device: Where they compute.

    Raises:
        ModelError: No such folder, a network of no known class or with a wrong config, weights that are missing,
            misshapen or damaged, or a package that the network needs and that is not installed.
    """
    folder, device = Path(checkpoint), torch.device(device)
    name, kind, config = _kind(folder)
    try:
        with torch.device("meta"):
            network = kind.build(config)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{str(checkpoint)!r}: the config does not fit {name}: {error}") from error
    try:
        fill(network, read_weights(folder / NETWORK_FOLDER), dtype, device)
    except ModelError as error:
        raise ModelError(f"{str(checkpoint)!r}: {error.message}", *error.hints) from error
    codec = load_codec(folder, kind.latent_channels(config), dtype, device)
    prompts = load_prompts(folder, network, dtype, device)
    model = kind(network, config, FlowSettings.read(folder), prompts, codec)
    load_adapter(folder, network)
    return model


def inputs_of(checkpoint: str | Path) -> str:
    """What the network of a folder is asked about, in words, by its config alone.

    Raises:
        ModelError: No such folder, or a network of no known class or without config.
    """
    _, kind, config = _kind(Path(checkpoint))
    widths = " and ".join(str(config[name]) for name in PROMPT_WIDTHS if name in config)
    return f"latents of {kind.latent_channels(config)} channels and prompts of width {widths}"


def _kind(folder: Path) -> tuple[str, type[FlowModel], dict[str, Any]]:
    """Name, class and config of the network of a folder."""
    if not folder.is_dir():
        siblings = [child.name for child in folder.parent.iterdir()] if folder.parent.is_dir() else []
        raise ModelError(
            f"no folder {str(folder)!r}{nearest(folder.name, siblings)}",
            "give the folder of a diffusers pipeline; `hf download OWNER/NAME --local-dir FOLDER` fetches one",
        )
    config = read_config(folder / NETWORK_FOLDER)
    name = config["_class_name"]
    if name not in NETWORKS:
        known = ", ".join(sorted(NETWORKS))
        raise ModelError(f"{str(folder)!r}: no adapter for {name!r}{nearest(name, NETWORKS)}; known: {known}")
    return name, NETWORKS[name], config
