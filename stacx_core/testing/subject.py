"""A trained role under one set of arguments, run through the real stages on generated samples.

The model is replaced by its output: one leaf tensor per sample. Conversion, `prepare` stages, validation, packing,
the hook `compute_loss`, normalization and the sum over micro-batches are those of a training run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import pluggy
import torch
from torch import Tensor, nn

from stacx_core.config import ModelRole, TrainingConfig, resolve_object
from stacx_core.data.batch import Batch, samples_to_batch, validate_batch
from stacx_core.knobs import Args
from stacx_core.plugins import plugin_host
from stacx_core.specialization.base import Specialization
from stacx_core.testing.rows import Row
from stacx_core.trainer.forwards import reads
from stacx_core.trainer.models import active_roles
from stacx_core.trainer.stages import run_stages
from stacx_core.trainer.syncs import active_syncs
from stacx_core.trainer.worker import RoleWorker

ONE_MICRO_BATCH = 10**6
Returned = tuple[Tensor, dict[str, Tensor]]


class Probe:
    """Stands for the plugin hooks and keeps what `compute_loss` returned."""

    def __init__(self) -> None:
        self.returned: list[Returned] = []

    def compute_loss(self, **inputs: Any) -> Returned:
        """Call the hook."""
        result: Returned = plugin_host().hook.compute_loss(**inputs)
        self.returned.append(result)
        return result


class LeafModel(nn.Module):
    """A model whose output on each sample is a parameter; `outputs` maps sample indices to `[L, V]`, or `[R, ...]`."""

    def __init__(self, outputs: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.leaves = nn.ParameterDict({str(index): nn.Parameter(value.clone()) for index, value in outputs.items()})

    def output(self, indices: Iterable[int]) -> Tensor:
        """The outputs of these samples in a row: `[T, V]`, or `[N, ...]`."""
        return torch.cat([self.leaves[str(index)] for index in indices])

    def gradients(self) -> dict[int, Tensor]:
        """The gradient of every sample's output, 0 where none came back."""
        return {
            int(index): torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for index, leaf in self.leaves.items()
        }


class Leaves:
    """What makes a worker one with a `LeafModel`; `cast_to` is the dtype of the output that the loss sees."""

    model: LeafModel
    cast_to: torch.dtype | None = None

    def output(self, micro: Batch) -> Tensor:
        """Of the samples of a micro-batch."""
        output = self.model.output(micro["sample_indices"])
        return output if self.cast_to is None else output.to(self.cast_to)


@cache
def leaf_worker(worker: str) -> type[RoleWorker]:
    """The worker of a run, with a `LeafModel`."""
    return type("LeafWorker", (Leaves, resolve_object(worker)), {})


@dataclass(frozen=True)
class Outcome:
    """One step's loss and gradients.

    Args:
        loss: the numerators summed and divided by the normalizer.
        gradients: sample index -> gradient of `loss`, of the shape of its output.
        metrics: name -> float64 sum over micro-batches, 0-d or `[2]`.
        returned: what each call of `compute_loss` returned.
        normalizer: what the numerators were divided by.
    """

    loss: float
    gradients: Mapping[int, Tensor]
    metrics: Mapping[str, Tensor]
    returned: Sequence[Returned]
    normalizer: float

    def numerators(self) -> dict[int, Tensor]:
        """The gradients before the division, which do not depend on how many rollouts the step has."""
        return {index: gradient * self.normalizer for index, gradient in self.gradients.items()}


@dataclass(frozen=True)
class Subject:
    """A trained role of a recipe under the arguments of a variant."""

    config: TrainingConfig
    role: ModelRole
    variant: str
    args: Args

    def specialization(self) -> Specialization:
        """The role's loss, built anew."""
        made: Specialization = resolve_object(self.role.specialization_cls)(self.args)
        return made

    def active_reads(self) -> list[str]:
        """The keys the role declares for these arguments."""
        return [key for key in self.role.reads if reads(self.role, key, self.args)]

    def given_keys(self) -> set[str]:
        """Every key that the role's batch holds before its stages run, by its reads, its syncs and the rollout."""
        keys = {*self.active_reads(), *self.config.rollout_fields}
        for sync in active_syncs(self.config, self.args):
            if self.role.name in (sync.src, sync.dst):
                keys |= {*sync.keys, *sync.reverse_keys}
        return {key for key in keys if self.config.batch_keys[key].producer != "advantages"}

    def rows(self) -> tuple[Row, ...]:
        """The samples to check with, as the recipe's modality makes them."""
        rows: tuple[Row, ...] = resolve_object(self.config.modality.check_rows)(self)
        return rows

    def batch(self, rows: Sequence[Row]) -> Batch:
        """The whole-rollout batch before the role's stages.

        Raises:
            StacxError: what conversion refuses.
        """
        given = self.given_keys()
        rewarded = {"rewards", "raw_reward"} & given
        samples = [row.sample if rewarded else row.with_sample(reward=None).sample for row in rows]
        batch, _ = samples_to_batch(samples, mask_truncated=self.args.mask_truncated, reward_key=None)
        for key in sorted(given - set(batch)):
            if key in rows[0].keys:
                batch[key] = [_copy(row.keys[key]) for row in rows]
        return batch

    def prepare(self, batch: Batch) -> Batch:
        """Run the stages and the validation on the batch, in place, and return it.

        Raises:
            StacxError: what a stage or the validation refuses.
        """
        run_stages(self.role, batch, self.args)
        validate_batch(batch, [*self.active_reads(), *self.config.rollout_fields], self.config.batch_keys)
        return batch

    def outputs(self, rows: Sequence[Row]) -> dict[int, Tensor]:
        """Sample index -> what the role's model puts out: its row's `output`, of which a scalar head has one column."""
        scalar = self.role.head == "scalar"
        return {row.index: row.output[:, :1] if scalar else row.output for row in rows}

    def step(
        self,
        batch: Batch,
        outputs: Mapping[int, Tensor],
        *,
        specialization: Specialization | None = None,
        probe: Probe | None = None,
        cast_to: torch.dtype | None = None,
        share: tuple[int, int] = (0, 1),
        **cut: Any,
    ) -> Outcome:
        """Loss and gradients of a step over a prepared batch.

        Args:
            outputs: the model's output of each sample.
            specialization: another loss than the role's.
            probe: watches the calls of the hook.
            cast_to: dtype of the output the loss sees; float64 unless told.
            share: rank and number of ranks: every `ranks`-th micro-batch from number `rank` on.
            cut: `micro_batch_size` or `max_tokens_per_gpu`; one micro-batch unless told.

        Raises:
            NonFiniteError: the loss is not finite.
        """
        args = self.args.replace(**{"micro_batch_size": None if cut else ONE_MICRO_BATCH, **cut})
        probe, model = probe or Probe(), LeafModel(outputs)
        worker = leaf_worker(self.config.modality.worker)(
            self.role, model, specialization or self.specialization(), args, cast(pluggy.HookRelay, probe)
        )
        cast(Leaves, worker).cast_to = cast_to
        rank, ranks = share
        worker.accumulate(batch, worker.micro_batches(batch)[rank::ranks])
        total = sum(float(loss.detach()) for loss, _ in probe.returned)
        normalizer = worker.normalizer(batch)
        return Outcome(total / normalizer, model.gradients(), _sums(probe.returned), probe.returned, normalizer)


def _sums(returned: Sequence[Returned]) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for _, metrics in returned:
        for name, value in metrics.items():
            value = value.detach().double()
            sums[name] = sums[name] + value if name in sums else value
    return sums


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def trained_subjects(config: TrainingConfig, variant: str, args: Args) -> list[Subject]:
    """One subject per trained role."""
    return [Subject(config, role, variant, args) for role in active_roles(config, args) if role.trainable]
