"""One role in this process: its model, its loss, its optimizer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

import pluggy
import torch
from torch import Tensor, nn

from stacx_core.backends.optimizer import Optimizer, RoleOptimizer
from stacx_core.backends.weights import first_names
from stacx_core.backends.writing import Writing, copied, copied_tensor
from stacx_core.config import ModelRole
from stacx_core.data.batch import Batch, select
from stacx_core.errors import BatchError, NonFiniteError, RecipeError
from stacx_core.knobs import Args
from stacx_core.objectives.aggregation import Aggregation, make_reducer
from stacx_core.plugins import plugin_host
from stacx_core.seeds import sub_seed
from stacx_core.specialization.base import Specialization
from stacx_core.trainer.step_metrics import StepMetrics

logger = logging.getLogger(__name__)


class RoleWorker(ABC):
    """Scores and trains one role; a modality has a subclass that knows its models and the entries of its batches.

    Args:
        role: The role of the recipe.
        model: The role's model, which has a `save_pretrained` like one of Transformers.
        specialization: The role's loss.
        args: The completed arguments, with the role's overrides in place.
        hook: The plugin hooks, through which ``compute_loss`` is called; those of the run unless given.
    """

    def __init__(
        self,
        role: ModelRole,
        model: nn.Module,
        specialization: Specialization,
        args: Args,
        hook: pluggy.HookRelay | None = None,
    ) -> None:
        self.role = role
        self.model = model
        self.specialization = specialization
        self.args = args
        self._hook = plugin_host().hook if hook is None else hook
        self._writing: Writing | None = None
        self.optimizer = self.make_optimizer() if role.trainable else None
        if not role.trainable:
            model.requires_grad_(False)
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype

    def make_optimizer(self) -> Optimizer:
        """The optimizer of the role's model."""
        return RoleOptimizer(self.model, self.args)

    def kept(self) -> Iterator[Tensor]:
        """Every tensor that the role needs from one call to the next; one may come more than once."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.optimizer is not None:
            yield from self.optimizer.kept()

    @classmethod
    @abstractmethod
    def load(
        cls, role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
    ) -> Self:
        """The worker with the weights of a checkpoint.

        Raises:
            ModelError: The checkpoint cannot be used.
        """

    @abstractmethod
    def micro_batches(self, batch: Batch) -> list[list[int]]:
        """Positions of the samples of each micro-batch."""

    @abstractmethod
    def collate(self, batch: Batch) -> Batch:
        """The samples of a micro-batch as the model and the loss read them, on the device."""

    @abstractmethod
    def output(self, micro: Batch) -> Tensor:
        """What the model says of a collated micro-batch: what the loss is given."""

    @abstractmethod
    def tell(self, batch: Batch, keys: Collection[str]) -> dict[str, list[Tensor]]:
        """Batch keys computed by one forward pass: per key and sample ``[R, ...]`` on the CPU.

        Only keys are asked for that :meth:`tells` says are the role's.
        """

    def tells(self, key: str) -> bool:
        """Whether the key, where it is read or sent on, is this role's to tell."""
        return key == self.role.own_key or not self.role.trainable

    @property
    @abstractmethod
    def output_layer(self) -> nn.Module:
        """The module whose output is the model's."""

    @property
    def longest_response(self) -> int:
        """``L_max`` of the aggregation `constant`: the most positions that a response can have."""
        return int(self.args.rollout_max_response_len)

    def as_read(self, batch: Batch) -> Batch:
        """A copy of a whole-rollout batch with what the role reads in its place.

        Raises:
            BatchError: It has none.
        """
        key = self.role.inputs_key
        if key not in batch:
            raise BatchError(f"role {self.role.name!r} reads {key}, which the rollout did not deliver")
        return dict(batch)

    def score(self, batch: Batch) -> list[Tensor]:
        """What the role says of every position of the responses: per sample ``[R]`` fp32 on the CPU."""
        return self.tell(batch, ("score",))["score"]

    def train_step(self, batch: Batch, total_updates: int) -> dict[str, float]:
        """One optimizer step on all samples of ``batch``.

        A step in which every mask is 0 or with a gradient of exactly zero leaves weights and moments alone, since
        AdamW would still move them by momentum; it is reported as ``skipped_step``.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the weights are untouched.
        """
        assert self.optimizer is not None
        if not any(mask.any() for mask in batch["loss_masks"]):
            logger.warning("role %r: every loss mask of this step is 0; the step is skipped", self.role.name)
            return {"loss": 0.0, "grad_norm": 0.0, "skipped_step": 1.0}
        torch.manual_seed(sub_seed(self.args.seed, "dropout", self.optimizer.updates))
        metrics = self.backward(batch)
        norm = self.optimizer.gradient_norm()
        if not torch.isfinite(torch.tensor(norm)):
            update = self.optimizer.updates
            raise NonFiniteError(f"role {self.role.name!r}: the gradient norm of update {update} is {norm}")
        if norm == 0:
            return {**metrics, "grad_norm": 0.0, "skipped_step": 1.0}
        lr = self.optimizer.step(norm, total_updates)
        return {**metrics, "grad_norm": norm, "lr": lr, "skipped_step": 0.0}

    def backward(self, batch: Batch) -> dict[str, float]:
        """Accumulate the gradient of the whole step's loss, micro-batch by micro-batch; returns its metrics."""
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        self.model.train()
        return self.accumulate(batch, self.micro_batches(batch))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The metrics of the loss on a batch, without training on it."""
        self.model.eval()
        return self.accumulate(batch, self.micro_batches(batch))

    def accumulate(self, batch: Batch, cut: Sequence[Sequence[int]]) -> dict[str, float]:
        """Add the gradient of each micro-batch of a step to what is there, unless gradients are off.

        Args:
            batch: The samples of the step.
            cut: Positions of the samples of each micro-batch.

        Returns:
            The metrics of the step.

        Raises:
            NonFiniteError: The loss of a micro-batch is not finite.
            RecipeError: The loss has no gradient.
        """
        normalizer, totals = self.normalizer(batch), StepMetrics()
        for positions in cut:
            micro = self.collate(select(batch, positions))
            loss, metrics = self.loss(micro, self.output(micro))
            if torch.is_grad_enabled():
                (loss / normalizer).backward()
            totals.add(metrics)
        return self.specialization.summarize(totals.result(normalizer))

    def normalizer(self, batch: Batch) -> int:
        """What the numerators of a step on these samples are divided by."""
        return Aggregation(self.args.loss_aggregation).normalizer(
            len(set(batch["rollout_ids"])),
            sum(int(mask.sum()) for mask in batch["loss_masks"]),
            self.longest_response,
        )

    def loss(self, micro: Batch, output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The numerator of a collated micro-batch's loss, and the metrics, the numerator among them.

        Args:
            micro: From :meth:`collate`.
            output: What the hook ``compute_loss`` is given of the model, such as :meth:`output` of the micro-batch.

        Raises:
            NonFiniteError: The loss is not finite.
            RecipeError: The loss has no gradient.
        """
        reducer = make_reducer(
            self.args.loss_aggregation, micro["response_lengths"], micro["loss_masks"], micro["rollout_mask_sums"]
        )
        loss, metrics = self._hook.compute_loss(
            specialization=self.specialization, model_output=output, batch=micro, reducer=reducer
        )
        if not torch.isfinite(loss):
            names = ", ".join(str(i) for i in micro["sample_indices"])
            raise NonFiniteError(f"role {self.role.name!r}: the loss of samples {names} is {loss.item()}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise RecipeError(f"role {self.role.name!r}: the loss has no gradient; it was detached or replaced")
        return loss, {**metrics, "loss": loss.detach()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The model's weights by name, one after the other."""
        yield from self.model.state_dict().items()

    def save(self, folder: Path) -> None:
        """Write the model into the folder of the role's name, and the optimizer's state beside it.

        Under ``--async-save`` both are copied, and written while the run goes on, until :meth:`finish_save`.
        """
        self.finish_save()
        background, target = self.args.async_save, optimizer_file(folder, self.role.name)
        weights = dict(self.model.state_dict())
        state = self.optimizer.state_dict() if isinstance(self.optimizer, RoleOptimizer) else None
        if background:
            kept = {first: copied_tensor(weights[first]) for first in set(first_names(self.model).values())}
            weights = {name: kept[first] for name, first in first_names(self.model).items()}
            state = copied(state)

        def write() -> None:
            self.model.save_pretrained(folder / self.role.name, state_dict=weights)  # type: ignore[operator]
            if state is not None:
                torch.save(state, target)

        self._writing = Writing(write, background)

    def finish_save(self) -> None:
        """Wait until what :meth:`save` began to write is on disk; it may be called from another thread.

        Raises:
            Exception: Something could not be written.
        """
        if self._writing is not None:
            self._writing.finish()

    def load_optimizer(self, folder: Path) -> None:
        """Take up the optimizer's state that :meth:`save` wrote."""
        if isinstance(self.optimizer, RoleOptimizer):
            self.optimizer.load_state_dict(torch.load(optimizer_file(folder, self.role.name), weights_only=True))


def optimizer_file(folder: Path, role: str) -> Path:
    """Where a checkpoint has the state of a role's optimizer."""
    return folder / f"{role}.optimizer.pt"
