"""scikit-learn's 8 x 8 digits: the data, and untrained models whose prompts they are."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stacx_core import ConfigError, DataError, nearest
from stacx_plugin_diffusion.extras import require
from stacx_plugin_diffusion.models.codecs import PixelCodec
from stacx_plugin_diffusion.models.flow_model import FlowModel, FlowSettings
from stacx_plugin_diffusion.models.networks import NETWORKS
from stacx_plugin_diffusion.models.prompts import PromptTable

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The prompts; the null prompt is ""."""

PROMPT_DIM = 32
TRAIN_SIZE = 1500
SPLITS = {"train": slice(TRAIN_SIZE), "test": slice(TRAIN_SIZE, None)}
SPLIT_SEED = 0

CONFIGS: dict[str, dict[str, Any]] = {
    "small": {"_class_name": "SmallDiT", "channels": 1, "patch_size": 2, "layers": 2, "dim": 64, "heads": 4},
    "sd3": {
        "_class_name": "SD3Transformer2DModel",
        "sample_size": 8,
        "patch_size": 2,
        "in_channels": 1,
        "out_channels": 1,
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "caption_projection_dim": 64,
        "pos_embed_max_size": 8,
    },
    "flux": {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": 4,
        "num_layers": 1,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "axes_dims_rope": [4, 6, 6],
    },
}
"""By name of the network: a config of about 300 000 weights."""


@cache
def digits_split(split: str) -> tuple[Tensor, Tensor]:
    """Pictures ``[N, 1, 8, 8]`` fp32 in [0, 1] and classes ``[N]`` int64: 1500 of ``train``, 297 of ``test``.

    Raises:
        DataError: No such split.
        ConfigError: scikit-learn is not installed.
    """
    if split not in SPLITS:
        raise DataError(f"no split {split!r} of the digits{nearest(split, SPLITS)}; choose train or test")
    loaded = require("sklearn.datasets", "digits", "the digits").load_digits()
    # As they come, the last digits are of writers who wrote none of the first.
    order = np.random.RandomState(SPLIT_SEED).permutation(len(loaded.target))[SPLITS[split]]
    media = torch.from_numpy(loaded.images[order]).float() / 16
    return media[:, None], torch.from_numpy(loaded.target[order]).long()


def write_digits_checkpoint(
    folder: str | Path, network: str = "small", seed: int = 0, spread: float = 0.02, **sizes: Any
) -> Path:
    """Write an untrained model whose prompts are the ten digits; the same for the same seed.

    Args:
        folder: Is made.
        network: ``small``, ``sd3`` or ``flux``; the latter two need diffusers.
        seed: Of weights and prompt embeddings.
        spread: Standard deviation of what the network's own rule would start at zero, so that even the untrained model
            answers to noise level and prompt.
        sizes: Replace entries of the network's config, as ``layers=1, dim=32``.

    Returns:
        The folder.

    Raises:
        ConfigError: No such network, or it has no such size.
        ModelError: diffusers is needed and not installed.
    """
    if network not in CONFIGS:
        raise ConfigError(f"no network {network!r}{nearest(network, CONFIGS)}; choose one of {', '.join(CONFIGS)}")
    widths = ("prompt_dim", "pooled_dim") if network == "small" else ("joint_attention_dim", "pooled_projection_dim")
    config = {**CONFIGS[network], **dict.fromkeys(widths, PROMPT_DIM), **sizes}
    kind = NETWORKS[config["_class_name"]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rows = len(CLASSES) + 1
        table = PromptTable(
            [*CLASSES, ""], torch.randn(rows, 1, config[widths[0]]), torch.randn(rows, config[widths[1]])
        )
        try:
            built = kind.build(config)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"network {network!r} with {sizes}: {error}") from error
        for parameter in built.parameters():
            if spread and not parameter.any():
                torch.nn.init.normal_(parameter, std=spread)
    model: FlowModel = kind(built, config, FlowSettings(), table, PixelCodec(kind.latent_channels(config)))
    model.save_pretrained(folder)
    return Path(folder)


def main() -> None:
    """Write a model to begin on."""
    parser = argparse.ArgumentParser(prog="python -m stacx_plugin_diffusion.digits", description=main.__doc__)
    parser.add_argument("folder", help="where to write it")
    parser.add_argument("--network", choices=sorted(CONFIGS), default="small")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(write_digits_checkpoint(given.folder, given.network, given.seed))


if __name__ == "__main__":
    main()
