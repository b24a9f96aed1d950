"""What a check is given, and how it compares results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.errors import StacxError
from stacx_core.modality import LANGUAGE
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import NotApplicable, Wrong
from stacx_core.testing.rows import Row
from stacx_core.testing.subject import Outcome, Subject

TOLERANCE = 1e-6
"""Largest difference relative to the largest entry: far above float64 noise, and what float32 stages leave."""


@dataclass(frozen=True)
class Trial:
    """A role, its arguments, the two processes of `data_parallel`, and samples if they are not the usual ones."""

    subject: Subject
    ranks: Ranks = field(compare=False)
    given: tuple[Row, ...] | None = None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The samples."""
        return self.subject.rows() if self.given is None else self.given

    @cached_property
    def prepared(self) -> Batch:
        """The batch after the role's stages, shared by all checks: never to be changed."""
        return self.prepare(self.rows)

    @cached_property
    def outputs(self) -> dict[int, Tensor]:
        """The model's output of each sample."""
        return self.subject.outputs(self.rows)

    @cached_property
    def outcome(self) -> Outcome:
        """Loss and gradients with all samples in one micro-batch."""
        return self.subject.step(self.prepared, self.outputs)

    def prepare(self, rows: Sequence[Row]) -> Batch:
        """The prepared batch of other samples."""
        return self.subject.prepare(self.subject.batch(rows))

    def run(self, rows: Sequence[Row]) -> Outcome:
        """Loss and gradients of other samples."""
        return self.subject.step(self.prepare(rows), self.subject.outputs(rows))


def require_tokens(trial: Trial) -> None:
    """Raise `NotApplicable` where the samples are no tokens."""
    if trial.subject.config.modality != LANGUAGE:
        raise NotApplicable("the samples have no tokens")


@contextmanager
def during(change: str) -> Iterator[None]:
    """Turn an error of the host or the recipe into a `Wrong` that names the change which brought it about."""
    try:
        yield
    except StacxError as error:
        raise Wrong(f"{change}: {error}", kind=f"{change}: {type(error).__name__}") from error


def require_same(
    found: Outcome, expected: Outcome, change: str, *, tolerance: float = TOLERANCE, metrics: bool = True
) -> None:
    """Raise `Wrong`, naming the change, unless loss, gradients and sums of metrics agree; 0 asks for equal bits."""
    if not close(torch.tensor(found.loss), torch.tensor(expected.loss), tolerance):
        raise Wrong(f"the loss is {found.loss:.6g} {change}, and {expected.loss:.6g} without that")
    require_same_gradients(found.gradients, expected.gradients, change, tolerance)
    if not metrics:
        return
    for name in expected.metrics.keys() | found.metrics.keys():
        if name not in found.metrics or name not in expected.metrics:
            raise Wrong(f"the metric {name!r} comes and goes {change}")
        if not close(found.metrics[name], expected.metrics[name], tolerance):
            raise Wrong(
                f"the metric {name!r} sums to {show(found.metrics[name])} {change}, and to "
                f"{show(expected.metrics[name])} without that"
            )


def require_same_gradients(
    found: Mapping[int, Tensor], expected: Mapping[int, Tensor], change: str, tolerance: float = TOLERANCE
) -> None:
    """Raise `Wrong`, naming the change and the sample, unless the gradients agree."""
    scale = max((float(gradient.abs().max()) for gradient in expected.values()), default=0.0)
    for index, gradient in expected.items():
        if not close(found[index], gradient, tolerance, scale):
            row = int((found[index] - gradient).abs().nan_to_num(torch.inf).view(len(gradient), -1).amax(-1).argmax())
            raise Wrong(
                f"the gradient of sample {index} at position {row} is {show(found[index][row])} {change}, "
                f"and {show(gradient[row])} without that"
            )


def close(found: Tensor, expected: Tensor, tolerance: float, scale: float | None = None) -> bool:
    """Whether two tensors agree up to `tolerance` times `scale`, the largest expected entry unless told."""
    if tolerance == 0:
        return torch.equal(found, expected)
    if scale is None:
        scale = float(expected.abs().max())
    return bool(((found - expected).abs() <= tolerance * scale + 1e-12).all())


def show(values: Tensor) -> str:
    """A few numbers of a tensor, for a message."""
    numbers = values.detach().flatten().tolist()
    text = ", ".join(f"{number:.4g}" for number in numbers[:4])
    return text if values.dim() == 0 else f"[{text}{', ...' if len(numbers) > 4 else ''}]"
