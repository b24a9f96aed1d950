"""Checksums of the servers' weights against the trainer's.

SGLang hashes each of its own tensors: the first 16 hexadecimal digits of the SHA-256 of its bytes on a CPU, a hash of
its own on a GPU. Some of its tensors are several of a checkpoint's, one after the other, and vocabularies are padded
with zeros. What cannot be recomputed here is compared between the servers only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.plan import Plan, listed
from stacx_core.rollout.sglang.weights.served import ServedModel

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Tensors of SGLang's, and those of a checkpoint that lie in them one after the other."""

VOCABULARY_MULTIPLE = 64
"""SGLang pads the rows of embeddings and heads to a multiple of this."""


def compare(plan: Plan, told: Sequence[Mapping[str, str]]) -> list[str]:
    """Compare what each server told with the trainer's weights, or with another server where that is impossible.

    Returns:
        The servers' tensors that were compared with the trainer's.

    Raises:
        WeightSyncError: Naming the server and its tensors that differ.
    """
    compared: list[str] = []
    first: dict[tuple[str, int], Mapping[str, str]] = {}
    for target, checksums in zip(plan.targets, told, strict=True):
        if target.plain and target.device == "cpu" and plan.dtype is not None:
            own = {name: expected(plan, name) for name in checksums}
            known = [name for name, hashes in own.items() if hashes]
            _refuse(target, [name for name in known if checksums[name] not in own[name]], "the trainer's")
            compared = compared or known
        twin = first.setdefault((target.device, target.tp_size), checksums)
        _refuse(target, [name for name in checksums if checksums[name] != twin.get(name)], "another server's")
    return compared


def checksum(tensor: Tensor) -> str:
    """SGLang's checksum of a tensor on a CPU."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()[:16]


def expected(plan: Plan, name: str) -> set[str]:
    """The checksums that a server's tensor may have; none when it is not known what lies in it."""
    sources = [source for source in _sources(name) if source in plan.tensors]
    if not sources or len(sources) != len(_sources(name)):
        return set()
    whole = torch.cat([plan.sent(source) for source in sources])
    rows = -len(whole) % VOCABULARY_MULTIPLE
    if rows and any(part in name for part in ("embed", "lm_head")):
        return {checksum(whole), checksum(F.pad(whole, (0, 0, 0, rows)))}
    return {checksum(whole)}


def _sources(name: str) -> list[str]:
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return [name.replace(fused, part) for part in parts]
    return [name]


def _refuse(target: ServedModel, names: Sequence[str], whose: str) -> None:
    if names:
        raise WeightSyncError(
            f"after the update the weights of {target.url} differ from {whose}: {listed(names)}",
            f"its label is still {target.version!r}; its weights must not be used",
            url=target.url,
        )
