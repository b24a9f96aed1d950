"""The one interface of every denoiser; what is particular to a network stays behind it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stacx_core import ConfigError, ModelError, nearest
from stacx_plugin_diffusion.models.codecs import MediaCodec
from stacx_plugin_diffusion.models.lora import save_adapter, split_adapter
from stacx_plugin_diffusion.models.prompts import PromptEncoder
from stacx_plugin_diffusion.models.weights import NETWORK_FOLDER, save_network

SETTINGS_FILE = "flow.json"
PREFIX = "network."
"""Of the names in a model's state dict."""


@dataclass(frozen=True)
class FlowSettings:
    """What a network's own config does not say; `flow.json` of a checkpoint, which may be absent.

    Fields:
        velocity_sign: 1 where the network predicts noise minus data, -1 where it predicts data minus noise.
        guidance_embed: What a guidance-distilled network is told as its guidance scale.
        step_distilled: The network was made for a few large steps, for which some losses are not.
    """

    velocity_sign: int = 1
    guidance_embed: float = 3.5
    step_distilled: bool = False

    @classmethod
    def read(cls, folder: Path) -> FlowSettings:
        """The settings of a checkpoint.

        Raises:
            ModelError: The file is no JSON object, or has an unknown or impossible setting.
        """
        path = folder / SETTINGS_FILE
        if not path.exists():
            return cls()
        try:
            found = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{path} is no JSON object: {error}") from error
        known = [field.name for field in fields(cls)]
        for name in found:
            if name not in known:
                raise ModelError(f"{path}: unknown setting {name!r}{nearest(name, known)}; known: {', '.join(known)}")
        settings = cls(**found)
        if settings.velocity_sign not in (1, -1):
            raise ModelError(f"{path}: velocity_sign is 1 or -1, not {settings.velocity_sign!r}")
        return settings


class FlowModel(nn.Module, ABC):
    """A denoiser with its prompt encoder and its map between media and latents.

    Only the network is part of the module, so of its parameters and its state dict; the rest is frozen.

    Args:
        network: The denoiser.
        config: Of the network, as its checkpoint states it.
        settings: What the config leaves open.
        prompts: The prompt encoder.
        codec: Between media and latents.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Mapping[str, Any],
        settings: FlowSettings,
        prompts: PromptEncoder,
        codec: MediaCodec,
    ) -> None:
        super().__init__()
        self.network = network
        self.config = dict(config)
        self.settings = settings
        self.prompts = prompts
        self.codec = codec

    @staticmethod
    @abstractmethod
    def build(config: Mapping[str, Any]) -> nn.Module:
        """A network of this kind, with random weights.

        Raises:
            TypeError, ValueError: The config does not fit.
            ModelError: A package is not installed.
        """

    @staticmethod
    @abstractmethod
    def latent_channels(config: Mapping[str, Any]) -> int:
        """Channels of the latent that a network of this config denoises."""

    @property
    @abstractmethod
    def patch_size(self) -> int:
        """Side of the square of latent pixels that makes a token."""

    @property
    def longest_side(self) -> int | None:
        """Most latent pixels along a side, where the network's positions end."""
        return None

    @abstractmethod
    def _run(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        """The network's own output for inputs of its dtype, and sigma in fp32."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision the network computes in."""
        return next(self.network.parameters()).dtype

    def predict_velocity(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        """The velocity, noise minus data, which is the derivative of the latent by sigma.

        Args:
            x: ``[B, C, H, W]`` fp32, the latent at noise level sigma.
            sigma: ``[B]`` fp32 in [0, 1]; 1 is noise.
            cond: What :meth:`encode` gives, batched: ``prompt_embeds [B, L, E]`` and ``pooled_embeds [B, P]``, on any
                device and in any floating dtype.

        Returns:
            ``[B, C, H, W]`` fp32.
        """
        moved = {name: value.to(device=x.device, dtype=self.dtype) for name, value in cond.items()}
        return self.settings.velocity_sign * self._run(x.to(self.dtype), sigma.float(), moved).float()

    def forward(self, x: Tensor, sigma: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        """:meth:`predict_velocity`."""
        return self.predict_velocity(x, sigma, cond)

    def encode(self, prompts: Sequence[str]) -> list[dict[str, Tensor]]:
        """For each prompt ``prompt_embeds [L, E]`` and ``pooled_embeds [P]`` in ordinary memory; "" is the null prompt.

        Raises:
            ModelError: The encoder cannot be loaded, or does not know a prompt.
        """
        return self.prompts.encode(prompts)

    def encode_media(self, media: Tensor) -> Tensor:
        """Latents ``[B, *D]`` fp32 of media ``[B, C, H, W]`` fp32 in [0, 1]."""
        return self.codec.encode(media)

    def decode(self, x0: Tensor) -> Tensor:
        """Media ``[B, C, H, W]`` fp32 in [0, 1] of clean latents ``[B, *D]``."""
        return self.codec.decode(x0)

    @property
    def media_channels(self) -> int:
        """Channels of what :meth:`decode` gives."""
        return self.codec.channels

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        """``(C, H, W)`` of the latent of media with so many pixels.

        Raises:
            ConfigError: They are no multiple of what one token covers, or more than the network has positions for.
        """
        unit = self.codec.downscale * self.patch_size
        most = self.longest_side and self.longest_side * self.codec.downscale
        for name, size in (("height", height), ("width", width)):
            if size < unit or size % unit:
                near = max(unit, round(size / unit) * unit)
                raise ConfigError(f"{name} {size} is no positive multiple of {unit} pixels; the nearest is {near}")
            if most and size > most:
                raise ConfigError(f"{name} {size} is more than the {most} pixels that this network has positions for")
        channels = self.latent_channels(self.config)
        return channels, height // self.codec.downscale, width // self.codec.downscale

    def gradient_checkpointing_enable(self) -> None:
        """Keep no activations of the blocks for the backward pass, but compute them again."""
        self.network.enable_gradient_checkpointing()  # type: ignore[operator]

    def save_pretrained(self, folder: str | Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write a whole checkpoint that :func:`load_flow_model` reads, and diffusers too if it read this one's source.

        A LoRA adapter is written beside the weights it belongs to, in ``lora/``. Frozen parts of a pipeline are linked
        where the file system can, so that a checkpoint costs no second copy of them.

        Args:
            folder: Is made.
            state_dict: To be written in place of the model's own, with the names of :meth:`state_dict`.
        """
        folder = Path(folder)
        state = self.state_dict() if state_dict is None else state_dict
        base, adapter = split_adapter({name.removeprefix(PREFIX): tensor for name, tensor in state.items()})
        save_network(folder / NETWORK_FOLDER, self.config, base)
        save_adapter(folder, self.network, adapter)
        (folder / SETTINGS_FILE).write_text(json.dumps(asdict(self.settings), indent=2) + "\n", encoding="utf-8")
        self.prompts.save(folder)
        self.codec.save(folder)
