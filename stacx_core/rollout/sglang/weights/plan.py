"""What is sent, decided before the first byte: the trainer's weights against those of every server's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from stacx_core.backends.weights import checkpoint_tensors, runs
from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.served import ServedModel

DECIDING = (
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "layer_norm_eps",
    "rope_parameters",
    "sliding_window",
    "tie_word_embeddings",
)
"""Fields of a config that decide what a model computes where shapes do not tell, or that say it more clearly."""

SHOWN = 4
"""Names of tensors that a message lists."""


@dataclass(frozen=True)
class TrainedWeights:
    """The trainer's weights.

    Args:
        tensors: Under the names of a Hugging Face checkpoint, on any device.
        config: Of their model.
    """

    tensors: Mapping[str, Tensor]
    config: PreTrainedConfig

    @classmethod
    def of(cls, model: nn.Module) -> TrainedWeights:
        """Those of a Hugging Face model, not copied."""
        return cls(checkpoint_tensors(model), model.config)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """What goes to which servers.

    Args:
        targets: The servers, each with what it runs.
        tensors: What is sent, on the trainer's device and in its dtype.
        dtype: Floating-point tensors are sent in it; ``None`` leaves them as they are.
        buckets: Names, in the order in which they are sent.
    """

    targets: tuple[ServedModel, ...]
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype | None
    buckets: tuple[tuple[str, ...], ...]

    def sent(self, name: str) -> Tensor:
        """A tensor as the servers get it: contiguous, in their dtype, on the trainer's device."""
        tensor = self.tensors[name].detach()
        return (tensor.to(self.dtype) if self.dtype and tensor.is_floating_point() else tensor).contiguous()

    def bucket(self, names: Sequence[str]) -> list[tuple[str, Tensor]]:
        """The tensors of a bucket."""
        return [(name, self.sent(name)) for name in names]


def make_plan(targets: Sequence[ServedModel], weights: TrainedWeights, buffer_bytes: int) -> Plan:
    """Compare the weights with the model of every server, and cut them into buckets.

    Raises:
        WeightSyncError: A server runs another model, or the servers hold their weights in different dtypes.
    """
    if not targets:
        raise WeightSyncError("there is no server to send weights to")
    for target in targets:
        _check_model(target, weights.config)
        _check_tensors(target, weights)
    dtypes = {target.dtype for target in targets}
    if len(dtypes) > 1:
        told = ", ".join(f"{target.url}: {target.dtype}" for target in targets)
        raise WeightSyncError(
            f"the servers hold their weights in different dtypes ({told}); start them with one --dtype"
        )
    dtype = dtypes.pop()
    tensors = {name: weights.tensors[name] for name in targets[0].layout.shapes}
    sizes = {name: tensor.numel() * _itemsize(tensor, dtype) for name, tensor in tensors.items()}
    buckets = tuple(tuple(names) for names in runs(sizes, sizes.__getitem__, buffer_bytes))
    return Plan(tuple(targets), tensors, dtype, buckets)


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _itemsize(tensor: Tensor, dtype: torch.dtype | None) -> int:
    return dtype.itemsize if dtype and tensor.is_floating_point() else tensor.element_size()


def _check_model(target: ServedModel, config: PreTrainedConfig) -> None:
    """Refuse another architecture, vocabulary, or a field that decides what is computed."""
    own, served = config.get_text_config(), target.config.get_text_config()
    if own.model_type != served.model_type:
        raise _refused(target, f"it runs a model of type {served.model_type!r}, the trainer one of {own.model_type!r}")
    for name in DECIDING:
        ours, theirs = getattr(own, name, None), getattr(served, name, None)
        if ours != theirs:
            raise _refused(target, f"its model has {name} {theirs!r}, the trainer's {ours!r}")


def _check_tensors(target: ServedModel, weights: TrainedWeights) -> None:
    """Refuse a missing, unknown or misshapen tensor, and a tied one that differs from its twin."""
    shapes, aliases, tensors = target.layout.shapes, target.layout.aliases, weights.tensors
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise _refused(target, f"the trainer's weights lack {listed(missing)}")
    unknown = [name for name in tensors if name not in shapes and name not in aliases]
    if unknown:
        raise _refused(target, f"its model has no {listed(unknown)}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise _refused(target, f"{name} has shape {tuple(tensors[name].shape)} and its model takes {shape}")
    for name, first in aliases.items():
        if name in tensors and not torch.equal(tensors[name], tensors[first]):
            raise _refused(target, f"its model ties {name} to {first}, and the trainer's differ")


def _refused(target: ServedModel, reason: str) -> WeightSyncError:
    return WeightSyncError(
        f"the trainer's weights do not fit {target.url}: {reason}",
        "nothing was sent; start the server with the folder of --hf-checkpoint",
        url=target.url,
    )
