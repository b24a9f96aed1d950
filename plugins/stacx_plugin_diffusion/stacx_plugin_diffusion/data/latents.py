"""A safetensors file of latents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stacx_core import DataError
from stacx_plugin_diffusion.data.example import Example

CONDITIONS = ("prompt_embeds", "pooled_embeds")


def read_latents(path: Path) -> Iterator[Example]:
    """Examples of ``latents [N, *D]``, with their prompts or the embeddings of these.

    Prompts are a JSON list of N texts in the file's metadata under ``prompts``; embeddings are the tensors
    ``prompt_embeds [N, L, E]`` and ``pooled_embeds [N, P]``. With both the embeddings count. ``weights [N]`` and
    ``labels [N]`` may be there.

    Raises:
        DataError: The file is damaged, lacks what is needed, has a tensor of another length, or a row that is not
            finite.
    """
    tensors, prompts = _contents(path)
    if "latents" not in tensors:
        raise DataError(f"{path}: no tensor 'latents'; it has {', '.join(sorted(tensors)) or 'none'}")
    count = len(tensors["latents"])
    has_embeds = all(name in tensors for name in CONDITIONS)
    if not has_embeds and prompts is None:
        raise DataError(
            f"{path}: neither prompts nor their embeddings",
            "add the tensors prompt_embeds and pooled_embeds, or a JSON list of texts as metadata 'prompts'",
        )
    for name, size in [*((name, len(tensor)) for name, tensor in tensors.items()), ("prompts", len(prompts or ""))]:
        if size != count and not (name == "prompts" and prompts is None):
            raise DataError(f"{path}: {name!r} has {size} rows, 'latents' has {count}")
    for name in ("latents", *CONDITIONS, "weights"):
        _refuse_non_finite(path, name, tensors)
    weights, labels = tensors.get("weights"), tensors.get("labels")
    for row in range(count):
        yield Example(
            prompt=prompts[row] if prompts is not None else "",
            latent=tensors["latents"][row].float(),
            weight=None if weights is None else float(weights[row]),
            label=None if labels is None else int(labels[row]),
            cond={name: tensors[name][row] for name in CONDITIONS} if has_embeds else None,
            where=f"{path}, row {row + 1}",
        )


def _contents(path: Path) -> tuple[dict[str, Tensor], list[str] | None]:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            listed = (file.metadata() or {}).get("prompts")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is damaged, or not what its name says: {error}") from error
    if listed is None:
        return tensors, None
    try:
        prompts = json.loads(listed)
    except ValueError as error:
        raise DataError(f"{path}: the metadata 'prompts' are no JSON: {error}") from error
    if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
        raise DataError(f"{path}: the metadata 'prompts' must be a JSON list of texts")
    return tensors, prompts


def _refuse_non_finite(path: Path, name: str, tensors: dict[str, Tensor]) -> None:
    if name not in tensors:
        return
    sound = torch.isfinite(tensors[name]).flatten(1).all(dim=1) if tensors[name].ndim > 1 else tensors[name].isfinite()
    if not sound.all():
        bad = int((~sound).nonzero()[0])
        raise DataError(f"{path}, row {bad + 1}: {name!r} holds NaN or infinity", "encode it anew, or remove the row")
    if name == "weights" and (tensors[name] < 0).any():
        bad = int((tensors[name] < 0).nonzero()[0])
        raise DataError(f"{path}, row {bad + 1}: a weight must not be negative, as {float(tensors[name][bad])} is")
