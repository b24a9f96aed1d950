"""A folder of images with captions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stacx_core import DataError, read_records
from stacx_plugin_diffusion.data.rows import as_row, existing, label_field, read_text, text_field, weight_field

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
METADATA_FILE = "metadata.jsonl"


def captioned_images(folder: Path) -> Iterator[tuple[str, Path, str, float | None, int | None]]:
    """For each image (where, path, caption, weight, label).

    ``metadata.jsonl`` names them in ``file_name`` and ``text``, and may have ``weight`` and ``label``, as in a Hugging
    Face image folder; without that file the caption of ``NAME.png`` is the text of ``NAME.txt``.

    Raises:
        DataError: There is no image, or one without caption.
    """
    images = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not images:
        raise DataError(f"no image in {str(folder)!r}; known are {', '.join(SUFFIXES)}")
    metadata = folder / METADATA_FILE
    if metadata.exists():
        yield from _from_metadata(metadata, set(images))
        return
    for path in images:
        caption = path.with_suffix(".txt")
        if not caption.exists():
            raise DataError(
                f"{path}: no caption", f"write it to {caption.name} beside it, or list the images in {metadata}"
            )
        text = read_text(caption).strip()
        if not text:
            raise DataError(f"{caption}: the caption is blank")
        yield str(path), path, text, None, None


def _from_metadata(metadata: Path, images: set[Path]) -> Iterator[tuple[str, Path, str, float | None, int | None]]:
    for where, record in read_records(str(metadata)):
        row = as_row(record, where)
        path = existing(metadata.parent / text_field(row, "file_name", where), where)
        images.discard(path)
        yield where, path, text_field(row, "text", where), weight_field(row, where), label_field(row, where)
    if images:
        first = min(images)
        raise DataError(
            f"{metadata}: no row for {len(images)} images, first {str(first)!r}",
            f'add {{"file_name": "{first.relative_to(metadata.parent)}", "text": "..."}}, or remove it',
        )
