"""Generated samples: every shape a rollout can deliver, small enough to read, the same in every process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stacx_core.config import resolve_object
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.testing.results import SampleShape

if TYPE_CHECKING:
    from stacx_core.testing.subject import Subject

VOCABULARY = 11
SEED = 20


@dataclass(frozen=True, eq=False)
class Row:
    """A sample, the model's output on it, and what other models say about its response.

    Args:
        sample: with an index of its own.
        output: `[L, V]` float64; a scalar head takes the first column. Of a sample without tokens `[R, ...]`, one
            entry for each position of the response.
        keys: batch keys of this sample that forward passes, teachers or environments compute, token-level ones
            `[R]` float32 or `[R, K]`.
    """

    sample: Sample
    output: Tensor
    keys: dict[str, Any]

    @property
    def index(self) -> int:
        """The number of the sample."""
        assert self.sample.index is not None
        return self.sample.index

    @property
    def first(self) -> int:
        """The row of the output that belongs to the first position of the response."""
        return self.sample.prompt_length - 1 if self.sample.inputs is None else 0

    def with_sample(self, **changes: Any) -> Row:
        """The row with some fields of its sample changed."""
        return replace(self, sample=replace(self.sample, **changes))

    def shape(self) -> SampleShape:
        """What a report prints of the sample."""
        s = self.sample
        reward = s.reward if isinstance(s.reward, float | int) else None
        status = "removed" if s.removed else str(s.status)
        return SampleShape(
            self.index, s.prompt_length, s.response_length, s.mask, s.rollout_id, s.group_index, reward, status
        )

    def without_response_token(self, position: int) -> Row:
        """The row without one token of its response, counted from 0."""
        s, at = self.sample, self.sample.prompt_length + position
        kept = torch.tensor([index for index in range(s.response_length) if index != position], dtype=torch.int64)
        sample = replace(
            s,
            tokens=s.tokens[:at] + s.tokens[at + 1 :],
            inputs=_picked(s.inputs, s.response_length, kept),
            response_length=s.response_length - 1,
            loss_mask=[s.mask[index] for index in kept.tolist()],
        )
        keys = {key: value[kept] if isinstance(value, Tensor) else value for key, value in self.keys.items()}
        return Row(sample, torch.cat([self.output[:at], self.output[at + 1 :]]), keys)

    def cut(self, position: int, indices: tuple[int, int]) -> tuple[Row, Row]:
        """The row as two siblings of one rollout; to the second, the response up to `position` is prompt."""
        s, at = self.sample, self.sample.prompt_length + position

        def part(start: int, stop: int, end: int, index: int) -> Row:
            length, mask = stop - start, s.mask[start:stop]
            inputs = _picked(s.inputs, s.response_length, torch.arange(start, stop))
            tokens, output = s.tokens[:end], self.output[:end] if inputs is None else self.output[start:stop]
            sample = replace(s, index=index, tokens=tokens, inputs=inputs, response_length=length, loss_mask=mask)
            keys = {key: v[start:stop] if isinstance(v, Tensor) else v for key, v in self.keys.items()}
            return Row(sample, output, keys)

        first, second = indices
        return part(0, position, at, first), part(position, s.response_length, len(s.tokens), second)

    def without_prompt_token(self) -> Row:
        """The row without the first token of its prompt."""
        return replace(self.with_sample(tokens=self.sample.tokens[1:]), output=self.output[1:])


def _picked(inputs: dict[str, Any] | None, length: int, kept: Tensor) -> dict[str, Any] | None:
    """The inputs of some positions of a response of this length."""
    if inputs is None:
        return None
    aligned = {key for key, value in inputs.items() if isinstance(value, Tensor) and len(value) == length}
    return {key: value[kept] if key in aligned else value for key, value in inputs.items()}


@dataclass(frozen=True)
class _Plan:
    """What is fixed about a sample; the rest is drawn."""

    prompt: int
    mask: str
    group: int
    rollout: int
    reward: float | None
    status: SampleStatus = SampleStatus.COMPLETED
    pair: int | None = None
    chosen: bool | None = None


_GROUPS = (
    _Plan(2, "1101", 0, 0, 1.0),
    _Plan(4, "0111", 0, 0, 1.0),
    _Plan(3, "1", 0, 1, 0.25),
    _Plan(1, "11111", 0, 2, -0.5),
    _Plan(2, "110110", 1, 3, 0.5),
    _Plan(1, "1111", 1, 4, 2.0, SampleStatus.TRUNCATED),
    _Plan(2, "011", 1, 5, 0.0),
    _Plan(3, "10", 2, 6, 1.0),
    _Plan(1, "111", 2, 7, None, SampleStatus.ABORTED),
    _Plan(2, "1011", 2, 8, 0.0),
    _Plan(1, "000", 3, 9, 1.0),
    _Plan(4, "1110", 3, 10, 0.75),
    _Plan(2, "11", 3, 11, -1.0),
)
"""Groups of uneven size: two siblings, masks with holes, a single token, a truncated, an aborted and an untrained
sample. Two of every group stay when the truncated one does not count."""

_PAIRS = (
    *(_Plan(2, "1101", 0, 0, 1.0, pair=0, chosen=True), _Plan(2, "111", 0, 0, 0.0, pair=0, chosen=False)),
    *(_Plan(1, "1", 1, 1, 1.0, pair=1, chosen=True), _Plan(1, "11111", 1, 1, 0.5, pair=1, chosen=False)),
    *(_Plan(3, "0110", 2, 2, 0.0, pair=2, chosen=False), _Plan(3, "11", 2, 2, 2.0, pair=2, chosen=True)),
    *(_Plan(2, "111", 3, 3, 1.0, pair=3, chosen=True), _Plan(2, "1111", 3, 3, -1.0, pair=3, chosen=False)),
)
"""Preference pairs: the two sides of a pair are one rollout, in either order."""


def language_rows(subject: Subject) -> tuple[Row, ...]:
    """Samples of tokens for a role: pairs where it reads them, and what the roll-in makes of them.

    A roll-in that adds samples of its own to a rollout has a class method `check_samples(args, samples)`, which
    gets the generated samples and returns those of a rollout: the same tokens under the same index, and what it
    adds without an index.
    """
    rows = paired_rows() if {"pair_ids", "is_chosen"} & subject.given_keys() else grouped_rows()
    complete = getattr(resolve_object(subject.config.rollout), "check_samples", None)
    if complete is None:
        return rows
    samples: list[Sample] = complete(subject.args, [row.sample for row in rows])
    generator = torch.Generator().manual_seed(SEED)
    added = [sample for sample in samples if sample.index is None]
    numbered = [replace(sample, index=len(rows) + number) for number, sample in enumerate(added)]
    kept = [replace(rows[sample.index], sample=sample) for sample in samples if sample.index is not None]
    return (*kept, *(row_of(sample, generator) for sample in numbered))


def grouped_rows(seed: int = SEED) -> tuple[Row, ...]:
    """Samples of four prompt groups, 13 in all."""
    return _draw(_GROUPS, seed)


def paired_rows(seed: int = SEED) -> tuple[Row, ...]:
    """Four preference pairs."""
    return _draw(_PAIRS, seed)


def _draw(plans: Iterable[_Plan], seed: int) -> tuple[Row, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(_row(index, plan, generator) for index, plan in enumerate(plans))


def _row(index: int, plan: _Plan, generator: torch.Generator) -> Row:
    response = len(plan.mask)
    sample = Sample(
        index=index,
        group_index=plan.group,
        rollout_id=plan.rollout,
        tokens=torch.randint(VOCABULARY, (plan.prompt + response,), generator=generator).tolist(),
        response_length=response,
        loss_mask=[int(m) for m in plan.mask],
        reward=plan.reward,
        status=plan.status,
        pair_id=plan.pair,
        is_chosen=plan.chosen,
    )
    return row_of(sample, generator)


def row_of(sample: Sample, generator: torch.Generator) -> Row:
    """A row of this sample, with an output drawn at random, and other models that are near it."""
    response = sample.response_length
    output = torch.randn(len(sample.tokens), VOCABULARY, generator=generator, dtype=torch.float64)
    own = log_probs_of(sample, output)

    def near(values: Tensor, spread: float) -> Tensor:
        return (values + spread * torch.randn(values.shape, generator=generator)).clamp(max=0.0).float()

    before = near(own, 0.25)
    keys = {
        "log_probs": before,
        "rollout_log_probs": near(before, 0.15),
        "ref_log_probs": near(own, 0.4),
        "teacher_log_probs": near(own, 0.5),
        "values": (output[_rows(sample), 0] + 0.3 * torch.randn(response, generator=generator)).float(),
        **_other_keys(response, generator),
    }
    return Row(sample, output, keys)


def _other_keys(response: int, generator: torch.Generator) -> dict[str, Any]:
    """Keys of teachers and environments: two likely tokens, one turn, written by the student."""
    likely = torch.rand(response, 2, generator=generator)
    return {
        "teacher_topk_ids": torch.randint(VOCABULARY, (response, 2), generator=generator, dtype=torch.int32),
        "teacher_topk_log_probs": torch.log(likely / (likely.sum(-1, keepdim=True) + 0.5)),
        "executor": torch.ones(response, dtype=torch.int8),
        "turn_ids": torch.zeros(response, dtype=torch.int16),
        "behavior_version": torch.zeros(response, dtype=torch.int32),
        "round_number": 0,
    }


def _rows(sample: Sample) -> Tensor:
    """Rows `[R]` of the output that predict the response tokens."""
    return torch.arange(sample.prompt_length - 1, len(sample.tokens) - 1)


def log_probs_of(sample: Sample, output: Tensor, temperature: float = 1.0) -> Tensor:
    """`[R]` float64: what the model itself says about the response."""
    rows = _rows(sample)
    targets = torch.tensor(sample.tokens)[rows + 1]
    return torch.log_softmax(output[rows] / temperature, -1).gather(-1, targets[:, None]).squeeze(-1)


def along_log_prob(sample: Sample, output: Tensor, gradient: Tensor, temperature: float = 1.0) -> float:
    """How a loss with this gradient changes as the log-prob of the trained tokens rises."""
    leaf = output.detach().clone().requires_grad_()
    (log_probs_of(sample, leaf, temperature) * torch.tensor(sample.mask)).sum().backward()
    assert leaf.grad is not None
    return float((gradient * leaf.grad).sum())
