"""The weights of a Hugging Face model, named as in its checkpoints, and in runs of some size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

T = TypeVar("T")


def runs(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut items, as they come, into runs of at most so many bytes; one above that is alone."""
    run: list[T] = []
    filled = 0
    for item in items:
        if run and filled + size(item) > most:
            yield run
            run, filled = [], 0
        run.append(item)
        filled += size(item)
    if run:
        yield run


def checkpoint_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a Hugging Face model under the names of its checkpoints, tied ones once."""
    state = model.state_dict(keep_vars=True)
    own = {name: state[name].detach() for name, first in first_names(model).items() if name == first}
    found: dict[str, Tensor] = revert_weight_conversion(model, own)  # type: ignore[arg-type]
    return found


def first_names(model: nn.Module) -> dict[str, str]:
    """For each name of a weight, the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}
