"""The training loop; it knows no algorithm by name."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from stacx_core.config import DataSync, ModelRole, TrainingConfig
from stacx_core.data.batch import Batch, samples_to_batch, select, validate_batch
from stacx_core.data.sample import Sample
from stacx_core.data.schedule import rollout_steps
from stacx_core.errors import BatchError
from stacx_core.hookspecs import SyncChannel
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.evaluation import Evaluation
from stacx_core.rollout.parity import probe_parity
from stacx_core.rollout.protocol import RollIn
from stacx_core.tracking.tracker import Tracker
from stacx_core.trainer.ahead import AbortableEngine, RolloutsAhead, RolloutsInTurn, staleness
from stacx_core.trainer.checkpoints import write_checkpoint
from stacx_core.trainer.forwards import reads, run_forwards
from stacx_core.trainer.interrupts import Interrupts
from stacx_core.trainer.invariance import check_loss_invariance
from stacx_core.trainer.stages import run_stages
from stacx_core.trainer.worker import RoleWorker

STATE_FILE = "trainer.json"
logger = logging.getLogger(__name__)


@dataclass
class Parts:
    """What :func:`stacx_core.trainer.factory.create_trainer` puts together."""

    config: TrainingConfig
    args: Args
    tokenizer: PreTrainedTokenizerBase
    workers: dict[str, RoleWorker]
    reference: RoleWorker | None
    engine: RolloutEngine
    roll_in: RollIn
    evaluation: Evaluation | None
    syncs: Sequence[DataSync]
    channels: Sequence[SyncChannel]
    num_rollout: int

    @property
    def policy(self) -> RoleWorker:
        """The worker whose model the engine generates with; in a recipe without one, the first."""
        workers = list(self.workers.values())
        return next((worker for worker in workers if worker.role.sync_to_rollout), workers[0])

    def prefix(self, role: str) -> str:
        """What the names of a role's metrics start with: nothing where one role alone is trained."""
        return f"{role}/" if sum(worker.role.trainable for worker in self.workers.values()) > 1 else ""


class StacxTrainer:
    """Runs rollouts, updates, evaluations and checkpoints.

    Args:
        parts: The run's components.
        tracker: Where metrics go.
        start: State of the checkpoint resumed from, else ``None``.
    """

    def __init__(self, parts: Parts, tracker: Tracker, start: dict[str, Any] | None) -> None:
        self.parts = parts
        self.args = parts.args
        self.tracker = tracker
        self.completed = start["rollout"] if start else 0
        self._saved = self.completed if start else None
        self._position = parts.roll_in.state()
        self._rollouts = rollouts_of(parts, self.completed)
        self._interrupts = Interrupts()
        self._held_out = held_out_batch(parts)
        self._invariance_due = parts.args.check_loss_invariance

    def train(self) -> dict[str, float]:
        """Run to the end; returns the last line of metrics.

        Raises:
            KeyboardInterrupt: After a checkpoint of the last completed rollout was saved.
        """
        last: dict[str, float] = {}
        with self._interrupts.installed(), closing(self.parts.engine):
            self._send_weights()
            self._probe_parity()
            with self._rollouts:
                try:
                    if self.completed == 0 and self._evaluates and not self.args.skip_eval_before_train:
                        last = self._log({"rollout": 0.0, **self._evaluate()})
                    while self.completed < self.parts.num_rollout:
                        last = self._rollout()
                    self.save()
                except KeyboardInterrupt:
                    self.save()
                    raise
        return last

    def _send_weights(self) -> None:
        policy = self.parts.policy
        if policy.role.sync_to_rollout:
            self.parts.engine.update_weights(policy.model, self.completed)

    def _probe_parity(self) -> None:
        """Compare engine, trainer and teacher where the engine plays the policy and nobody has switched it off."""
        policy = self.parts.policy
        if not policy.role.sync_to_rollout or not self.args.parity_probe_limit:
            return
        trained = partial(policy_log_probs, policy)
        teacher = getattr(self.parts.roll_in, "teacher", None) if self.completed == 0 else None
        with self.parts.engine.weights_at_rest():
            probe_parity(self.args, self.parts.tokenizer, self.parts.engine, trained, teacher)

    def _rollout(self) -> dict[str, float]:
        began = time.perf_counter()
        rolled = self._rollouts.take(self.completed)
        waited = time.perf_counter() - began
        samples = rolled.rollout.samples
        batch, counters = samples_to_batch(
            samples, mask_truncated=self.args.mask_truncated, reward_key=self.args.reward_key
        )
        counters |= self._staleness(samples)
        rolled_at = time.perf_counter()
        with self._interrupts.held():
            trained = self._update(batch)
            self.completed += 1
            self._position = rolled.position
            metrics = {
                "rollout": float(self.completed),
                **{f"rollout/{k}": v for k, v in {**rolled.rollout.metrics, **counters}.items()},
                **{f"train/{k}": v for k, v in trained.items()},
                "time/rollout_seconds": rolled.seconds,
                "time/wait_seconds": waited,
            }
            try:
                self._distribute(metrics, partial(_times, began, rolled_at, counters["response_tokens"]))
            finally:
                self._log(metrics)
        if self.args.save_interval and self.completed % self.args.save_interval == 0:
            self.save()
        return metrics

    def _distribute(self, metrics: dict[str, float], times: Callable[[], dict[str, float]]) -> None:
        """Let the engine have the new weights, and evaluate them when it is time to; what was measured is added."""
        try:
            self._send_weights()
        finally:
            metrics |= times()
        self._rollouts.updated(self.completed)
        if self._evaluates and self._due(self.args.eval_interval):
            metrics |= self._evaluate()

    def _staleness(self, samples: Sequence[Sample]) -> dict[str, float]:
        """The metric of an engine that is sent the weights; only responses carried over may be older than allowed."""
        if self.args.rollout_engine == "local":
            return {}
        found = staleness(samples, self.completed)
        assert self.args.partial_rollout or found.get("staleness", 0) <= self.args.max_staleness, found
        return found

    def _update(self, batch: Batch) -> dict[str, float]:
        """Forward passes, syncs, whole-batch stages, then the steps of every trained role."""
        if not any(mask.any() for mask in batch["loss_masks"]):
            logger.warning("no token of rollout %d is trained on; its update is skipped", self.completed)
            return {"loss": 0.0, "grad_norm": 0.0, "skipped_step": 1.0}
        batches, metrics = prepared_batches(self.parts, batch)
        if self._invariance_due:
            for name, role_batch in batches.items():
                check_loss_invariance(self.parts.workers[name], role_batch)
            self._invariance_due = False
        for name, role_batch in batches.items():
            worker = self.parts.workers[name]
            if self.completed >= frozen_rollouts(worker):
                steps = self._steps(worker, role_batch)
                metrics |= {self.parts.prefix(name) + k: v for k, v in steps.items()}
        for channel in self.parts.channels:
            channel.after_update(self.completed + 1)
        return metrics

    def _steps(self, worker: RoleWorker, batch: Batch) -> dict[str, float]:
        count, epochs = self.args.num_steps_per_rollout, self.args.epochs_per_rollout
        expected = self.args.rollout_batch_size * self.args.n_samples_per_prompt
        steps, dropped = rollout_steps(batch["rollout_ids"], self.args.global_batch_size, count, expected)
        if dropped:
            logger.warning("%d trailing responses do not fill a step and are left out", dropped)
        total = (self.parts.num_rollout - frozen_rollouts(worker)) * count * epochs
        results = [worker.train_step(select(batch, positions), total) for positions in steps * epochs]
        assert worker.optimizer is not None
        metrics = {**_mean(results), "dropped_rollouts": float(dropped), "updates": float(worker.optimizer.updates)}
        if results and "lr" in results[0]:
            metrics["lr"] = results[0]["lr"]
        return metrics

    def _due(self, interval: int | None) -> bool:
        last = self.completed == self.parts.num_rollout
        return last or (interval is not None and self.completed % interval == 0)

    @property
    def _evaluates(self) -> bool:
        return self.parts.evaluation is not None or self._held_out is not None

    def _evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.parts.evaluation is not None:
            with self._rollouts.idle():
                metrics |= self.parts.evaluation.run(self.parts.engine)
        if self._held_out is not None:
            batches, _ = prepared_batches(self.parts, self._held_out)
            for name, batch in batches.items():
                losses = self.parts.workers[name].evaluate(batch)
                metrics |= {self.parts.prefix(name) + k: v for k, v in losses.items()}
        return {f"eval/{k}": v for k, v in metrics.items()}

    def _log(self, metrics: dict[str, float]) -> dict[str, float]:
        self.tracker.log(metrics)
        return metrics

    def save(self) -> None:
        """Write a checkpoint of the last completed rollout, unless it is on disk already."""
        if self._saved == self.completed:
            return
        folder = Path(self.args.output_dir) / "checkpoints"
        write_checkpoint(folder, self.completed, self._write, self.args.keep_checkpoints)
        self._saved = self.completed

    def _write(self, folder: Path) -> None:
        for name, worker in self.parts.workers.items():
            if worker.optimizer is None and not worker.role.stateful:
                continue
            worker.model.save_pretrained(folder / name)  # type: ignore[operator]
            self.parts.tokenizer.save_pretrained(folder / name)
            if worker.optimizer is not None:
                torch.save(worker.optimizer.state_dict(), folder / f"{name}.optimizer.pt")
        state = {"rollout": self.completed, "roll_in": self._position, "algorithm": self.args.algorithm}
        (folder / STATE_FILE).write_text(json.dumps(state, indent=1))


def rollouts_of(parts: Parts, completed: int) -> RolloutsInTurn:
    """The run's rollouts that are not completed yet; some ahead under ``--max-staleness``."""
    if not parts.args.max_staleness:
        return RolloutsInTurn(parts.roll_in, parts.engine)
    assert isinstance(parts.engine, AbortableEngine)
    numbers = range(completed, parts.num_rollout)
    return RolloutsAhead(parts.roll_in, parts.engine, numbers, parts.args.max_staleness)


def prepared_batches(parts: Parts, batch: Batch) -> tuple[dict[str, Batch], dict[str, float]]:
    """A copy of the batch for each trained role, after forward passes, syncs and the role's whole-batch stages.

    Returns:
        Role name -> its batch, validated, and the metrics of the stages.

    Raises:
        BatchError, NonFiniteError: A key is missing or does not fit.
        RecipeError: A stage returns something else than metrics.
    """
    batches = {name: as_read_by(worker.role, batch) for name, worker in parts.workers.items()}
    run_forwards(parts.args, parts.workers, parts.reference, parts.syncs, batches)
    for channel in parts.channels:
        channel.transfer(batches)
    metrics: dict[str, float] = {}
    trained = {name: batches[name] for name, worker in parts.workers.items() if worker.role.trainable}
    for name, role_batch in trained.items():
        role = parts.workers[name].role
        measured = run_stages(role, role_batch, parts.workers[name].args)
        metrics |= {parts.prefix(name) + k: v for k, v in measured.items()}
        required = [key for key in role.reads if reads(role, key, parts.args)]
        validate_batch(role_batch, [*required, *parts.config.rollout_fields])
    return trained, metrics


def as_read_by(role: ModelRole, batch: Batch) -> Batch:
    """A copy of the batch with the sequences that the role reads in the place of its tokens.

    Raises:
        BatchError: The batch has none.
    """
    if role.tokens_key == "tokens":
        return dict(batch)
    if role.tokens_key not in batch:
        raise BatchError(f"role {role.name!r} reads {role.tokens_key}, which the rollout did not deliver")
    tokens = batch[role.tokens_key]
    return {**batch, "tokens": tokens, "total_lengths": [len(ids) for ids in tokens]}


def policy_log_probs(worker: RoleWorker, sample: Sample) -> list[float]:
    """Log-probs of a sample's response as training computes them."""
    batch, _ = samples_to_batch([sample], mask_truncated=False, reward_key=None)
    scores: list[float] = worker.score(batch)[0].tolist()
    return scores


def frozen_rollouts(worker: RoleWorker) -> int:
    """How many first rollouts the role is not trained in."""
    return int(worker.args.get(worker.role.frozen_for, 0)) if worker.role.frozen_for else 0


def held_out_batch(parts: Parts) -> Batch | None:
    """The held-out samples of a roll-in that has some: the loss is measured on them, never trained."""
    samples = parts.roll_in.held_out()
    if not samples:
        return None
    return samples_to_batch(samples, mask_truncated=parts.args.mask_truncated, reward_key=parts.args.reward_key)[0]


def _mean(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean over steps of each metric, taken where it was reported."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        for name, value in result.items():
            values[name].append(value)
    return {name: sum(v) / len(v) for name, v in values.items()}


def _times(began: float, rolled_at: float, tokens: float) -> dict[str, float]:
    now = time.perf_counter()
    return {
        "time/train_seconds": now - rolled_at,
        "time/response_tokens_per_second": tokens / (now - began),
    }
