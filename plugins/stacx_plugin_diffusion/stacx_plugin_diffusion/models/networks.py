"""The networks this package knows, each with its scale of time and its packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stacx_core import ModelError
from stacx_plugin_diffusion.extras import require
from stacx_plugin_diffusion.models.flow_model import FlowModel
from stacx_plugin_diffusion.models.patches import patchify, unpatchify
from stacx_plugin_diffusion.models.small_dit import SmallDiT

TIMESTEPS = 1000
"""Sigma 1 in the time of SD3 and of most others."""


class SmallDiTFlow(FlowModel):
    """:class:`SmallDiT`."""

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        return SmallDiT(**{name: value for name, value in config.items() if not name.startswith("_")})

    @staticmethod
    def latent_channels(config: Mapping[str, Any]) -> int:
        return int(config["channels"])

    @property
    def patch_size(self) -> int:
        return int(self.config["patch_size"])

    def _run(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        velocity: Tensor = self.network(x, sigma * TIMESTEPS, cond["prompt_embeds"], cond["pooled_embeds"])
        return velocity


class SD3Flow(FlowModel):
    """The MMDiT of Stable Diffusion 3 and 3.5 (Esser et al. 2024, https://arxiv.org/abs/2403.03206)."""

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        return _from_diffusers(config)

    @staticmethod
    def latent_channels(config: Mapping[str, Any]) -> int:
        return int(config["in_channels"])

    @property
    def patch_size(self) -> int:
        return int(self.config["patch_size"])

    @property
    def longest_side(self) -> int | None:
        return self.patch_size * int(self.config["pos_embed_max_size"])

    def _run(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        velocity: Tensor = self.network(
            hidden_states=x,
            timestep=sigma * TIMESTEPS,
            encoder_hidden_states=cond["prompt_embeds"],
            pooled_projections=cond["pooled_embeds"],
            return_dict=False,
        )[0]
        return velocity


class FluxFlow(FlowModel):
    """Flux, whose tokens are squares of 2 x 2 latent pixels and whose time runs from 0 to 1.

    A bf16 network rounds the time it is given to bf16.
    """

    PACK = 2

    @staticmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        return _from_diffusers(config)

    @staticmethod
    def latent_channels(config: Mapping[str, Any]) -> int:
        return int(config["in_channels"]) // FluxFlow.PACK**2

    @property
    def patch_size(self) -> int:
        return self.PACK

    def _run(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        rows, columns = x.shape[-2] // self.PACK, x.shape[-1] // self.PACK
        guided = bool(self.config.get("guidance_embeds"))
        prompt = cond["prompt_embeds"]
        velocity: Tensor = self.network(
            hidden_states=patchify(x, self.PACK),
            timestep=sigma,
            guidance=torch.full_like(sigma, self.settings.guidance_embed) if guided else None,
            encoder_hidden_states=prompt,
            pooled_projections=cond["pooled_embeds"],
            txt_ids=x.new_zeros(prompt.shape[1], 3),
            img_ids=_positions(rows, columns, x),
            return_dict=False,
        )[0]
        return unpatchify(velocity, self.PACK, rows, columns)


NETWORKS: dict[str, type[FlowModel]] = {
    "SmallDiT": SmallDiTFlow,
    "SD3Transformer2DModel": SD3Flow,
    "FluxTransformer2DModel": FluxFlow,
}
"""By the class that a network's config names."""


def _from_diffusers(config: Mapping[str, Any]) -> nn.Module:
    name = config["_class_name"]
    diffusers = require("diffusers", "diffusers", f"a checkpoint of {name}", ModelError)
    network: nn.Module = getattr(diffusers, name).from_config(dict(config))
    return network


def _positions(rows: int, columns: int, like: Tensor) -> Tensor:
    """``[rows * columns, 3]``: 0, row and column of each token."""
    down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([torch.zeros_like(down), down, across], dim=-1).flatten(0, 1).to(like)
