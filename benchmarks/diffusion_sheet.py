"""One picture of what each model of the benchmark draws from the same noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from stacx_core import Args
from stacx_plugin_diffusion.data import Example
from stacx_plugin_diffusion.digits import CLASSES
from stacx_plugin_diffusion.engine import FlowEngine
from stacx_plugin_diffusion.models import load_flow_model
from stacx_plugin_diffusion.pictures import to_picture
from stacx_plugin_diffusion.setup import drawn_media

TILE, GAP, LEFT, TOP = 32, 3, 160, 16
"""Pixels: of a sample, between samples, left of them for the names of models and above them for those of digits."""
PER_CLASS = 2


@dataclass(frozen=True)
class Drawer:
    """A model and how it samples."""

    model: Path
    steps: int = 10
    guidance: float = 1.0

    def strip(self, seed: int) -> Image.Image:
        """Some samples of each digit in a row, those of the evaluation of a run with this seed."""
        args = Args.of(
            height=8,
            width=8,
            sampling_steps=self.steps,
            sigma_shift=1.0,
            guidance_scale=self.guidance,
            max_states_per_gpu=64,
        )
        cpu = torch.device("cpu")
        engine = FlowEngine(load_flow_model(str(self.model), torch.float32, cpu), args, cpu)
        media = drawn_media(engine, [Example(name) for name in CLASSES * PER_CLASS], seed)
        strip = Image.new("L", (len(media) * (TILE + GAP), TILE), "white")
        for number, sample in enumerate(media):
            tile = to_picture(sample).resize((TILE, TILE), Image.Resampling.NEAREST)
            strip.paste(tile, (number * (TILE + GAP), 0))
        return strip


def write_sheet(path: Path, drawers: Mapping[str, Drawer], seed: int) -> None:
    """Write one PNG with a row for each model."""
    strips = {name: drawer.strip(seed) for name, drawer in drawers.items()}
    width = LEFT + max(strip.width for strip in strips.values())
    sheet = Image.new("L", (width, TOP + len(strips) * (TILE + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, name in enumerate(CLASSES * PER_CLASS):
        draw.text((LEFT + column * (TILE + GAP) + TILE // 2, TOP - GAP), name, fill="black", anchor="ms")
    for row, (name, strip) in enumerate(strips.items()):
        top = TOP + row * (TILE + GAP)
        draw.text((GAP, top + TILE // 2), name, fill="black", anchor="lm")
        sheet.paste(strip, (LEFT, top))
    sheet.save(path, optimize=True)
