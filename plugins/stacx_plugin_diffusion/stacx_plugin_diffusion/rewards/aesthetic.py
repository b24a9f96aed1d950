"""A head over CLIP's image embeddings, as the LAION aesthetics predictor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stacx_core import ModelError

HEAD_FILE = "aesthetic_head.safetensors"
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the pictures CLIP was trained on."""


class AestheticScore:
    """Scores pictures alone; the model is loaded on its first use.

    Args:
        folder: A CLIP model as transformers saves it, and beside it the head in ``aesthetic_head.safetensors``: linear
            layers in the order of their numbers, ``layers.0.weight``, ``layers.0.bias``, ``layers.2.weight`` and so on,
            with nothing between them; the last has one output.
        device: Where it computes.

    Raises:
        ModelError: The folder has no config or no head.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device = folder, device
        for name in ("config.json", HEAD_FILE):
            if not (folder / name).is_file():
                raise ModelError(
                    f"reward aesthetic: no {name} in {str(folder)!r}",
                    f"the folder holds a CLIP model as transformers saves it, and {HEAD_FILE}",
                )
        self._loaded: tuple[Any, nn.Sequential] | None = None

    def __call__(self, media: Tensor, prompts: list[str]) -> Tensor:
        """``[B]``: the score of each of ``[B, 1 or 3, H, W]`` in [0, 1]."""
        clip, head = self._models()
        side = clip.config.image_size
        pixels = media.to(self.device).expand(-1, 3, -1, -1)
        pixels = F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)
        mean, std = pixels.new_tensor(MEAN)[:, None, None], pixels.new_tensor(STD)[:, None, None]
        embeds = clip(pixel_values=(pixels - mean) / std).image_embeds
        scores: Tensor = head(F.normalize(embeds.float(), dim=-1))
        return scores[:, 0]

    def _models(self) -> tuple[Any, nn.Sequential]:
        if self._loaded is None:
            from transformers import CLIPVisionModelWithProjection

            try:
                clip: Any = CLIPVisionModelWithProjection.from_pretrained(self.folder)
                clip = clip.to(self.device).eval()
            except (OSError, ValueError, RuntimeError, SafetensorError) as error:
                raise ModelError(f"reward aesthetic: no usable CLIP model in {str(self.folder)!r}: {error}") from error
            head = read_head(self.folder / HEAD_FILE, clip.config.projection_dim)
            self._loaded = clip, head.to(self.device)
        return self._loaded


def read_head(path: Path, width: int) -> nn.Sequential:
    """The linear layers of a file, from `width` inputs to one output, in fp32.

    Raises:
        ModelError: It is damaged, or its layers do not fit each other.
    """
    try:
        tensors = load_file(path)
        names = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
        names.sort(key=lambda name: int(name.rpartition(".")[2]))
        layers = []
        for name in names:
            layer = nn.Linear(width, len(tensors[f"{name}.weight"]))
            layer.load_state_dict({"weight": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]})
            layers.append(layer.requires_grad_(False))
            width = layer.out_features
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{path} is no head over CLIP's embeddings: {error}") from error
    if width != 1 or not layers:
        raise ModelError(f"{path}: the last layer has {width} outputs; a score is one")
    return nn.Sequential(*layers)
