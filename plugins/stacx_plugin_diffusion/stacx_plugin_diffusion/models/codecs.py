"""Between media and latents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from stacx_core import ModelError
from stacx_plugin_diffusion.extras import require
from stacx_plugin_diffusion.models.linking import link_parts

VAE_FOLDER = "vae"


class MediaCodec(Protocol):
    """Media are ``[B, channels, H, W]`` fp32 in [0, 1], latents ``[B, C, H / downscale, W / downscale]`` fp32."""

    @property
    def channels(self) -> int:
        """Of the media."""

    @property
    def downscale(self) -> int:
        """Pixels of the media along the side of one of the latent."""

    def encode(self, media: Tensor) -> Tensor:
        """The latents of media."""

    def decode(self, x0: Tensor) -> Tensor:
        """The media of latents."""

    def save(self, folder: Path) -> None:
        """Write what is needed to load it again."""


class PixelCodec:
    """Latents are pixels, from -1 to 1."""

    downscale = 1

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def encode(self, media: Tensor) -> Tensor:
        return media.float() * 2 - 1

    def decode(self, x0: Tensor) -> Tensor:
        return _visible(x0)

    def save(self, folder: Path) -> None:
        """Nothing is needed."""


class VaeCodec:
    """The autoencoder of a pipeline, loaded when it is first asked; latents are scaled and shifted as it says.

    Raises:
        ModelError: Its config cannot be read.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        path = folder / VAE_FOLDER / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            self.channels = int(config["in_channels"])
            self.downscale = int(2 ** (len(config["block_out_channels"]) - 1))
            self.scale = float(config.get("scaling_factor") or 1.0)
            self.shift = float(config.get("shift_factor") or 0.0)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path} is no config of an autoencoder: {error}") from error
        self._vae: Any = None

    @torch.no_grad()
    def encode(self, media: Tensor) -> Tensor:
        """The mean of the latent's distribution, so that the same picture has the same latent."""
        pixels = (media * 2 - 1).to(device=self.device, dtype=self.dtype)
        mean: Tensor = self._loaded().encode(pixels).latent_dist.mean
        return (mean.float() - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Tensor:
        latents = (x0.float() / self.scale + self.shift).to(device=self.device, dtype=self.dtype)
        return _visible(self._loaded().decode(latents).sample)

    def save(self, folder: Path) -> None:
        link_parts(self.folder, folder, [VAE_FOLDER])

    def _loaded(self) -> Any:
        if self._vae is None:
            diffusers = require("diffusers", "diffusers", "an autoencoder", ModelError)
            try:
                vae = diffusers.AutoencoderKL.from_pretrained(self.folder / VAE_FOLDER, dtype=self.dtype)
            except (OSError, ValueError, RuntimeError) as error:
                raise ModelError(f"no usable autoencoder in {str(self.folder / VAE_FOLDER)!r}: {error}") from error
            vae.enable_slicing()
            self._vae = vae.to(self.device).requires_grad_(False)
        return self._vae


def load_codec(folder: Path, latent_channels: int, dtype: torch.dtype, device: torch.device) -> MediaCodec:
    """The autoencoder of a checkpoint's folder, or pixels where it has none."""
    if (folder / VAE_FOLDER).is_dir():
        return VaeCodec(folder, dtype, device)
    return PixelCodec(latent_channels)


def _visible(pixels: Tensor) -> Tensor:
    return (pixels.float() / 2 + 0.5).clamp(0, 1)
