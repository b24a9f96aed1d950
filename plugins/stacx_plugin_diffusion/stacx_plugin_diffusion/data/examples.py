"""From the name of a source to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from stacx_core import DataError, nearest, read_records
from stacx_plugin_diffusion.data.example import Example, Pair
from stacx_plugin_diffusion.data.images import captioned_images
from stacx_plugin_diffusion.data.latents import read_latents
from stacx_plugin_diffusion.data.rows import as_row, label_field, read_picture, read_text, text_field, weight_field
from stacx_plugin_diffusion.digits import CLASSES, digits_split

Encode = Callable[[Tensor], Tensor]
"""Latents ``[B, *D]`` fp32 of media ``[B, C, H, W]`` fp32 in [0, 1], as `FlowModel.encode_media`."""

DIGITS = "digits:"
ENCODED_AT_ONCE = 16
KINDS = (
    "a folder of images with captions, NAME.safetensors with latents, NAME.txt or NAME.jsonl with prompts, "
    "digits:train or digits:test"
)

Depicted = tuple[Example, Callable[[], Tensor] | None]
"""An example and what reads its picture ``[C, H, W]``; None where it has none to be read."""


def read_examples(source: str, encode: Encode | None = None, channels: int = 3) -> list[Example]:
    """The rows of a source, with latents of one shape if `encode` is given, else perhaps without.

    Sources are a folder of images with captions (`captioned_images`), a safetensors file of latents (`read_latents`), a
    file of prompts, one a line in ``.txt`` or in the field ``prompt`` in ``.jsonl`` (with ``weight`` and ``label`` if
    you like), and scikit-learn's 8 x 8 digits as ``digits:train`` (1500) and ``digits:test`` (297).

    Args:
        source: One of these.
        encode: Makes latents of pictures, some at a time. Without it no picture is opened.
        channels: Of the pictures it takes: 1 or 3.

    Raises:
        DataError: No such source, a malformed or corrupt row, pictures of several sizes, prompts alone where `encode`
            is given, or no row at all; names file and line.
        ConfigError: The source needs a package that is not installed.
    """
    rows = _rows(source, channels)
    examples = list(_encoded(rows, encode)) if encode is not None else [example for example, _ in rows]
    if not examples:
        raise DataError(f"{source!r} has no row")
    return examples


def read_pairs(source: str, encode: Encode, channels: int = 3) -> list[Pair]:
    """Pairs of a JSONL file with the fields ``prompt``, ``chosen`` and ``rejected``.

    The latter two are image files, relative to the JSONL file.

    Raises:
        DataError: No such file, a malformed row, a corrupt image, images of several sizes, or no row at all.
    """
    path = _existing(source)
    if path.suffix != ".jsonl":
        raise DataError(f"{source!r}: pairs are read from NAME.jsonl, with fields prompt, chosen and rejected")
    sides = list(_encoded(_pair_rows(path, channels), encode))
    if not sides:
        raise DataError(f"{source!r} has no row")
    return [
        Pair(chosen.prompt, _latent(chosen), _latent(rejected), chosen.where)
        for chosen, rejected in zip(sides[::2], sides[1::2], strict=True)
    ]


def _rows(source: str, channels: int) -> Iterator[Depicted]:
    if source.startswith(DIGITS):
        return _digits(source)
    path = _existing(source)
    if path.is_dir():
        return _images(path, channels)
    if path.suffix == ".safetensors":
        return ((example, None) for example in read_latents(path))
    if path.suffix in (".txt", ".jsonl"):
        return ((example, None) for example in _prompts(path))
    raise DataError(f"{source!r} has the suffix {path.suffix!r}; data are {KINDS}")


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists():
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{source!r} does not exist{nearest(path.name, siblings)}", f"data are {KINDS}")
    return path


def _digits(source: str) -> Iterator[Depicted]:
    media, labels = digits_split(source.removeprefix(DIGITS))
    for row, (picture, label) in enumerate(zip(media, labels.tolist(), strict=True), start=1):
        yield Example(CLASSES[label], label=label, where=f"{source}, row {row}"), picture.clone


def _images(folder: Path, channels: int) -> Iterator[Depicted]:
    for where, path, text, weight, label in captioned_images(folder):
        example = Example(text, weight=weight, label=label, where=where)
        yield example, partial(read_picture, path, channels, where)


def _prompts(path: Path) -> Iterator[Example]:
    if path.suffix == ".txt":
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            if line.strip():
                yield Example(line.strip(), where=f"{path}, line {number}")
        return
    for where, record in read_records(str(path)):
        row = as_row(record, where)
        prompt = text_field(row, "prompt", where)
        yield Example(prompt, weight=weight_field(row, where), label=label_field(row, where), where=where)


def _pair_rows(path: Path, channels: int) -> Iterator[Depicted]:
    for where, record in read_records(str(path)):
        row = as_row(record, where)
        example = Example(text_field(row, "prompt", where), where=where)
        for name in ("chosen", "rejected"):
            image = path.parent / text_field(row, name, where)
            yield example, partial(read_picture, image, channels, where)


def _encoded(rows: Iterable[Depicted], encode: Encode) -> Iterator[Example]:
    """The examples with latents, all of one shape."""
    rows = iter(rows)
    shape: list[int] | None = None
    pictured: list[int] | None = None
    while chunk := list(islice(rows, ENCODED_AT_ONCE)):
        examples, pictures = [example for example, _ in chunk], []
        for example, read in chunk:
            if read is None:
                continue
            pictures.append(read())
            pictured = pictured or list(pictures[-1].shape)
            _refuse_other_shape(example, list(pictures[-1].shape), pictured, "picture")
        if pictures:
            latents = encode(torch.stack(pictures)).cpu()
            examples = [replace(example, latent=latent) for example, latent in zip(examples, latents, strict=True)]
        for example in examples:
            found = list(_latent(example).shape)
            shape = shape or found
            _refuse_other_shape(example, found, shape, "latent")
            yield example


def _latent(example: Example) -> Tensor:
    if example.latent is None:
        raise DataError(
            f"{example.where}: a prompt without picture or latent, where data to learn from are needed",
            "name a folder of images with captions, or a safetensors file with latents",
        )
    return example.latent


def _refuse_other_shape(example: Example, found: list[int], first: list[int], what: str) -> None:
    if found != first:
        raise DataError(
            f"{example.where}: the {what} has shape {found}, the first one {first}",
            "bring all to one size before, for instance by cropping",
        )
