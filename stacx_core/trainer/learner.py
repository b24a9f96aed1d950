"""What becomes of a rollout: forward passes, syncs, whole-batch stages and the steps of every trained role."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from stacx_core.config import DataSync, ModelRole, TrainingConfig
from stacx_core.data.batch import Batch, samples_to_batch, select, validate_batch
from stacx_core.data.sample import Sample
from stacx_core.data.schedule import rollout_steps
from stacx_core.hookspecs import SyncChannel
from stacx_core.knobs import Args
from stacx_core.trainer.forwards import reads, run_forwards
from stacx_core.trainer.invariance import check_loss_invariance
from stacx_core.trainer.models import active_roles
from stacx_core.trainer.offload import Turns
from stacx_core.trainer.stages import run_stages
from stacx_core.trainer.worker import RoleWorker

logger = logging.getLogger(__name__)


class Learner(Protocol):
    """The roles of a run, wherever they live, as the trainer sees them."""

    def update(self, batch: Batch, completed: int) -> dict[str, float]:
        """Train on a whole rollout, the one after so many; returns the metrics.

        Raises:
            BatchError, NonFiniteError, RecipeError: Something is wrong with the batch, the loss or the recipe.
        """

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The metrics of the losses on a batch, without training on it."""

    def policy_log_probs(self, sample: Sample) -> list[float]:
        """Log-probs of a sample's response as training computes them."""

    def policy_model(self) -> nn.Module:
        """A Hugging Face model in this process that has the policy's weights as they are now."""

    def save(self, folder: Path) -> Collection[str]:
        """Write what a checkpoint keeps of the roles into a folder.

        Returns:
            Names of the folders in it that hold a model.
        """

    def finish_save(self) -> None:
        """Wait until all that :meth:`save` began to write is on disk; it may be called from another thread.

        Raises:
            Exception: Something could not be written.
        """

    def close(self) -> None:
        """Let go of the processes that hold the roles; more than once is fine."""


def policy_role(roles: Iterable[ModelRole]) -> ModelRole:
    """The role whose model the engine generates with; in a recipe without one, the first."""
    roles = list(roles)
    return next((role for role in roles if role.sync_to_rollout), roles[0])


@dataclass
class LocalLearner:
    """The roles of this process.

    Between calls the device is the policy's, whose model the engine may generate with.

    Args:
        config: The recipe.
        args: The completed arguments.
        workers: By the name of their role.
        reference: The frozen model of ``--ref-load``, where a role reads its log-probs.
        syncs: Those of the recipe that apply.
        channels: What moves keys and weights between roles.
        num_rollout: Rollouts of the whole run.
        turns: Who has the device.
    """

    config: TrainingConfig
    args: Args
    workers: Mapping[str, RoleWorker]
    reference: RoleWorker | None
    syncs: Sequence[DataSync]
    channels: Sequence[SyncChannel]
    num_rollout: int
    turns: Turns

    def __post_init__(self) -> None:
        self.turns.give(self.policy)
        self._invariance_due = self.args.check_loss_invariance

    @property
    def policy(self) -> RoleWorker:
        """The worker of the policy."""
        return self.workers[policy_role(worker.role for worker in self.workers.values()).name]

    def prefix(self, role: str) -> str:
        """What the names of a role's metrics start with: nothing where one role alone is trained."""
        return f"{role}/" if sum(role.trainable for role in active_roles(self.config, self.args)) > 1 else ""

    def update(self, batch: Batch, completed: int) -> dict[str, float]:
        """See :class:`Learner`."""
        if not any(mask.any() for mask in batch["loss_masks"]):
            logger.warning("every loss mask of rollout %d is 0; its update is skipped", completed)
            return {"loss": 0.0, "grad_norm": 0.0, "skipped_step": 1.0}
        batches, metrics = self.prepared(batch)
        if self._invariance_due:
            for name, role_batch in batches.items():
                self.turns.give(self.workers[name])
                check_loss_invariance(self.workers[name], role_batch)
            self._invariance_due = False
        for name, role_batch in batches.items():
            worker = self.workers[name]
            if is_trained(worker.role, worker.args, completed):
                steps = self._steps(worker, role_batch)
                metrics |= {self.prefix(name) + k: v for k, v in steps.items()}
        for channel in self.channels:
            channel.after_update(completed + 1)
        self.turns.give(self.policy)
        return metrics

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """See :class:`Learner`."""
        metrics: dict[str, float] = {}
        for name, role_batch in self.prepared(batch)[0].items():
            self.turns.give(self.workers[name])
            metrics |= {self.prefix(name) + k: v for k, v in self.workers[name].evaluate(role_batch).items()}
        self.turns.give(self.policy)
        return metrics

    def policy_log_probs(self, sample: Sample) -> list[float]:
        """See :class:`Learner`."""
        batch, _ = samples_to_batch([sample], mask_truncated=False, reward_key=None)
        scores: list[float] = self.policy.score(batch)[0].tolist()
        return scores

    def policy_model(self) -> nn.Module:
        """See :class:`Learner`; it is the model that is trained."""
        return self.policy.model

    def save(self, folder: Path) -> Collection[str]:
        """See :class:`Learner`."""
        kept = {name: w for name, w in self.workers.items() if w.optimizer is not None or w.role.stateful}
        for worker in kept.values():
            self.turns.give(worker)
            worker.save(folder)
        self.turns.give(self.policy)
        return kept.keys()

    def finish_save(self) -> None:
        """See :class:`Learner`."""
        for worker in self.workers.values():
            worker.finish_save()

    def close(self) -> None:
        """See :class:`Learner`; there are none."""

    def prepared(self, batch: Batch) -> tuple[dict[str, Batch], dict[str, float]]:
        """A copy of the batch for each trained role, after forward passes, syncs and the role's whole-batch stages.

        Returns:
            Role name -> its batch, validated, and the metrics of the stages.

        Raises:
            BatchError, NonFiniteError: A key is missing or does not fit.
            RecipeError: A stage returns something else than metrics.
        """
        batches = {name: worker.as_read(batch) for name, worker in self.workers.items()}
        run_forwards(self.args, self.workers, self.reference, self.syncs, batches, self.turns)
        for channel in self.channels:
            channel.transfer(batches)
        metrics: dict[str, float] = {}
        trained = {name: batches[name] for name, worker in self.workers.items() if worker.role.trainable}
        for name, role_batch in trained.items():
            role = self.workers[name].role
            measured = run_stages(role, role_batch, self.workers[name].args)
            metrics |= {self.prefix(name) + k: v for k, v in measured.items()}
            required = [key for key in role.reads if reads(role, key, self.args)]
            validate_batch(role_batch, [*required, *self.config.rollout_fields], self.config.batch_keys)
        return trained, metrics

    def _steps(self, worker: RoleWorker, batch: Batch) -> dict[str, float]:
        count, epochs = self.args.num_steps_per_rollout, self.args.epochs_per_rollout
        expected = self.args.rollout_batch_size * self.args.n_samples_per_prompt
        steps, dropped = rollout_steps(batch["rollout_ids"], self.args.global_batch_size, count, expected)
        if dropped:
            logger.warning("%d trailing responses do not fill a step and are left out", dropped)
        rollouts = sum(is_trained(worker.role, worker.args, rollout) for rollout in range(self.num_rollout))
        total = rollouts * count * epochs
        self.turns.give(worker)
        results = [worker.train_step(select(batch, positions), total) for positions in steps * epochs]
        assert worker.optimizer is not None
        metrics = {**_mean(results), "dropped_rollouts": float(dropped), "updates": float(worker.optimizer.updates)}
        if results and "lr" in results[0]:
            metrics["lr"] = results[0]["lr"]
        return metrics


def is_trained(role: ModelRole, args: Args, completed: int) -> bool:
    """Whether the role is trained in the rollout after so many."""
    if role.frozen_for is not None and completed < args.get(role.frozen_for, 0):
        return False
    every = args.get(role.trained_every) if role.trained_every is not None else None
    return every is None or (completed + 1) % int(every) == 0


def _mean(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean over steps of each metric, taken where it was reported."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        for name, value in result.items():
            values[name].append(value)
    return {name: sum(v) / len(v) for name, v in values.items()}
