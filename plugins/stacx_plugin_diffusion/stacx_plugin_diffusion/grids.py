"""What a user looks at: a sheet of samples, and how much the samples of a class differ."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from stacx_plugin_diffusion.pictures import to_picture

TILE = 64
"""Pixels: smaller pictures are scaled up to at least that width and height."""

GAP = 2
CAPTION = 12
"""Pixels between tiles, and of a line of text below one."""


def write_grid(path: str | Path, media: Tensor, columns: int, captions: Sequence[str] | None = None) -> None:
    """Write samples as one PNG, row by row from the top left.

    Args:
        path: The file; its folder is made.
        media: ``[N, C, H, W]`` in [0, 1]; C is 1 or 3. NaN is drawn black.
        columns: Samples in a row, at least 1.
        captions: One line of text for each sample; what does not fit is cut off.

    Raises:
        ValueError: No sample, no column, or not as many captions as samples.
    """
    count = len(media)
    if count == 0 or columns < 1:
        raise ValueError(f"a grid needs samples and columns; there are {count} samples and {columns} columns")
    if captions is not None and len(captions) != count:
        raise ValueError(f"{len(captions)} captions for {count} samples")
    tiles = [_enlarged(to_picture(sample)) for sample in media.nan_to_num(0.0)]
    width, height = tiles[0].width + GAP, tiles[0].height + GAP + (CAPTION if captions is not None else 0)
    columns = min(columns, count)
    sheet = Image.new("RGB", (columns * width + GAP, -(-count // columns) * height + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for index, tile in enumerate(tiles):
        left, top = GAP + index % columns * width, GAP + index // columns * height
        if captions is not None:
            draw.text((left, top + tile.height), captions[index], fill="black")
            # A long caption ends where the next tile's column begins.
            draw.rectangle((left + tile.width, top, sheet.width, top + height - GAP), fill="white")
        sheet.paste(tile, (left, top))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, "PNG")


def class_diversity(media: Tensor, labels: Sequence[Hashable]) -> dict[Hashable, float]:
    """Mean over pixels of the standard deviation (population) within each class.

    It falls when a policy finds one picture that pays and draws no other.

    Args:
        media: ``[N, C, H, W]``.
        labels: The class of each sample, or its prompt.

    Returns:
        By class, in the order of their first samples; a class of one sample is left out.
    """
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return {
        label: float(media[torch.tensor(members)].float().std(dim=0, correction=0).mean())
        for label, members in rows.items()
        if len(members) > 1
    }


def mean_diversity(media: Tensor, labels: Sequence[Hashable]) -> dict[str, float]:
    """The metric ``diversity``, the mean of :func:`class_diversity` over classes; none where no class has one.

    Args:
        media: ``[N, C, H, W]``; samples that are not finite do not count.
        labels: The class of each sample, or its prompt.
    """
    sound = media.isfinite().flatten(1).all(1)
    kept = [label for label, counts in zip(labels, sound.tolist(), strict=True) if counts]
    spread = class_diversity(media[sound], kept).values()
    return {"diversity": sum(spread) / len(spread)} if spread else {}


def _enlarged(picture: Image.Image) -> Image.Image:
    scale = max(1, -(-TILE // min(picture.size)))
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
