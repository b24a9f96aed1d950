"""Reading parts of the weights of a Hugging Face checkpoint, and writing one file after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stacx_core.backends.hub import work_offline_unless_it_answers
from stacx_core.backends.weights import runs
from stacx_core.errors import ModelError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""A checkpoint is the first of these files, or the second and those that it names."""

SHARD_BYTES = 5 * 10**9
"""Most bytes of a file that is written."""


def local_folder(checkpoint: str) -> Path:
    """The folder of a checkpoint, downloaded from the hub if it is no folder.

    Raises:
        ModelError: There is neither.
    """
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    work_offline_unless_it_answers()
    try:
        return Path(snapshot_download(checkpoint, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:
        raise ModelError(f"{checkpoint!r} is no folder, and the Hugging Face hub gives none: {error}") from error


class Checkpoint:
    """The weights of a checkpoint in safetensors files, read on demand and only as far as asked for; a context manager.

    Raises:
        ModelError: The checkpoint has none, or they cannot be read.
    """

    def __init__(self, checkpoint: str) -> None:
        self.folder = local_folder(checkpoint)
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()
        index = self.folder / INDEX
        try:
            if index.exists():
                self._files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            elif (self.folder / WHOLE).exists():
                self._files = dict.fromkeys(self._file(WHOLE).keys(), WHOLE)
            else:
                self._files = {}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(f"the weights in {str(self.folder)!r} cannot be read: {error}") from error
        if not self._files:
            raise ModelError(
                f"{str(self.folder)!r} has no weights in {WHOLE} or {INDEX}",
                "save the model anew with save_pretrained, which writes safetensors",
            )

    @property
    def names(self) -> list[str]:
        """Of the weights."""
        return list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a weight."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, dimension: int = 0, start: int = 0, stop: int | None = None) -> Tensor:
        """A weight from index ``start`` to ``stop`` along a dimension, in ordinary memory."""
        where = (slice(None),) * dimension + (slice(start, stop),)
        part: Tensor = self._slice(name)[where]
        return part

    def _slice(self, name: str) -> Any:
        try:
            return self._file(self._files[name]).get_slice(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"weight {name!r} in {str(self.folder)!r} cannot be read: {error}") from error

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = self._stack.enter_context(safe_open(self.folder / name, framework="pt"))
        return self._open[name]

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()


def write(weights: Iterable[tuple[str, Tensor]], folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write weights as they come, at most ``shard_bytes`` and one weight in memory.

    Raises:
        OSError: A file cannot be written.
    """
    # Copies, since the next weight may reuse the memory of a view.
    copies = (
        (name, tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)) for name, tensor in weights
    )
    shards = runs(copies, lambda weight: weight[1].nbytes, shard_bytes)
    written = [_write_shard(dict(shard), folder, number) for number, shard in enumerate(shards)]
    if len(written) == 1:
        written[0][0].rename(folder / WHOLE)
        return
    where: dict[str, str] = {}
    for number, (path, names, _) in enumerate(written, 1):
        target = folder / f"model-{number:05d}-of-{len(written):05d}.safetensors"
        path.rename(target)
        where.update(dict.fromkeys(names, target.name))
    index = {"metadata": {"total_size": sum(size for *_, size in written)}, "weight_map": dict(sorted(where.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_shard(tensors: dict[str, Tensor], folder: Path, number: int) -> tuple[Path, list[str], int]:
    path = folder / f".shard-{number}.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return path, list(tensors), sum(tensor.nbytes for tensor in tensors.values())
