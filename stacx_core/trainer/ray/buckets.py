"""The policy's weights on their way into the driver's model, a bucket at a time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stacx_core.backends.weights import runs

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
"""A weight of one expert, of which Transformers has all experts' in one parameter."""


@dataclass(frozen=True)
class Piece:
    """A weight.

    Attributes:
        name: In a Hugging Face checkpoint.
        dtype: Of its numbers.
        shape: Of the tensor.
        data: Its bytes, as an array of NumPy, which Ray's object store shares without a copy.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Piece:
        """A copy of a tensor."""
        flat = tensor.detach().to("cpu", copy=True).contiguous().view(-1)
        return cls(name, tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy())

    def tensor(self) -> Tensor:
        """The weight, in memory that may be shared and must not be changed."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(self.data).view(self.dtype).view(self.shape)


Bucket = list[Piece]


def buckets(weights: Iterable[tuple[str, Tensor]], most: int) -> Iterator[Bucket]:
    """Copies of weights, as they come, in runs of at most so many bytes; one above that is alone."""
    return runs((Piece.of(name, tensor) for name, tensor in weights), lambda piece: piece.data.nbytes, most)


class Receiver:
    """Takes buckets into a model of Transformers, in place.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._state: dict[str, Tensor] = model.state_dict(keep_vars=True)

    @torch.no_grad()
    def take(self, bucket: Bucket) -> None:
        """Copy the weights of a bucket."""
        for piece in bucket:
            self._place(piece.name).copy_(piece.tensor())

    def _place(self, name: str) -> Tensor:
        """The parameter that a weight of a checkpoint is, or its part of one."""
        found = EXPERT.fullmatch(name)
        if name in self._state or found is None:
            return self._state[name]
        experts, index, kind = found.group(1), int(found.group(2)), found.group(3)
        if kind == "down":
            return self._state[f"{experts}.down_proj"][index]
        gate, up = self._state[f"{experts}.gate_up_proj"][index].chunk(2)
        return gate if kind == "gate" else up
