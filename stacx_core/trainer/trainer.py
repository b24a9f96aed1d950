"""The training loop; it knows no algorithm by name."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stacx_core.config import TrainingConfig
from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.sample import Sample
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.tracking.tracker import Tracker
from stacx_core.trainer.ahead import AbortableEngine, RolloutsAhead, RolloutsInTurn, staleness
from stacx_core.trainer.interrupts import Interrupts, broken_off
from stacx_core.trainer.learner import Learner, policy_role
from stacx_core.trainer.models import active_roles
from stacx_core.trainer.saving import Saver
from stacx_core.trainer.setup import RunSetup

STATE_FILE = "trainer.json"
logger = logging.getLogger(__name__)


@dataclass
class Parts:
    """What :func:`stacx_core.trainer.factory.create_trainer` puts together."""

    config: TrainingConfig
    args: Args
    setup: RunSetup
    learner: Learner
    engine: RolloutEngine
    num_rollout: int

    def batch(self, samples: Sequence[Sample]) -> tuple[Batch, dict[str, float]]:
        """The batch of a rollout's samples, and what is counted of them."""
        args = self.args
        return samples_to_batch(
            samples,
            mask_truncated=args.mask_truncated,
            reward_key=args.reward_key,
            unit=self.config.modality.unit,
        )


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
        self._policy = policy_role(active_roles(parts.config, parts.args))
        self._position = parts.setup.roll_in.state()
        self._rollouts = rollouts_of(parts, self.completed)
        self._saver = Saver(
            Path(self.args.output_dir) / "checkpoints", self.args.keep_checkpoints, self.args.async_save
        )
        self._interrupts = Interrupts()
        self._held_out = held_out_batch(parts)

    @broken_off()
    def train(self) -> dict[str, float]:
        """Run to the end; returns the last line of metrics.

        Raises:
            KeyboardInterrupt: After a checkpoint of the last completed rollout was saved.
        """
        last: dict[str, float] = {}
        with self._interrupts.installed(), closing(self.parts.learner), closing(self.parts.engine), self._saver:
            self._send_weights()
            self.parts.setup.before_training(self.parts.learner, self.parts.engine, self.completed)
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
        if self._policy.sync_to_rollout:
            self.parts.engine.update_weights(self.parts.learner.policy_model(), self.completed)

    def _rollout(self) -> dict[str, float]:
        began = time.perf_counter()
        rolled = self._rollouts.take(self.completed)
        waited = time.perf_counter() - began
        samples = rolled.rollout.samples
        batch, counters = self.parts.batch(samples)
        counters |= self._staleness(samples)
        rolled_at = time.perf_counter()
        with self._interrupts.held():
            trained = self.parts.learner.update(batch, self.completed)
            self.completed += 1
            self._position = rolled.position
            metrics = {
                "rollout": float(self.completed),
                **{f"rollout/{k}": v for k, v in {**rolled.rollout.metrics, **counters}.items()},
                **{f"train/{k}": v for k, v in trained.items()},
                "time/rollout_seconds": rolled.seconds,
                "time/wait_seconds": waited,
            }
            unit = self.parts.config.modality.unit
            times = partial(_times, began, rolled_at, unit, counters[f"response_{unit}s"])
            try:
                self._distribute(metrics, times)
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

    def _due(self, interval: int | None) -> bool:
        last = self.completed == self.parts.num_rollout
        return last or (interval is not None and self.completed % interval == 0)

    @property
    def _evaluates(self) -> bool:
        return self.parts.setup.evaluation is not None or self._held_out is not None

    def _evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.parts.setup.evaluation is not None:
            with self._rollouts.idle():
                metrics |= self.parts.setup.evaluation.run(self.parts.engine)
            self.tracker.show(self.parts.setup.evaluation.pictures, self.completed)
        if self._held_out is not None:
            metrics |= self.parts.learner.evaluate(self._held_out)
        return {f"eval/{k}": v for k, v in metrics.items()}

    def _log(self, metrics: dict[str, float]) -> dict[str, float]:
        self.tracker.log(metrics)
        return metrics

    def save(self) -> None:
        """Write a checkpoint of the last completed rollout, unless there is one; see :class:`Saver`."""
        if self._saved == self.completed:
            return
        self._saver.save(self.completed, self._write, self.parts.learner.finish_save)
        self._saved = self.completed

    def _write(self, folder: Path) -> None:
        for name in self.parts.learner.save(folder):
            self.parts.setup.save(folder / name)
        state = {
            "rollout": self.completed,
            "roll_in": self._position,
            "algorithm": self.args.algorithm,
            "backend": self.args.backend,
        }
        (folder / STATE_FILE).write_text(json.dumps(state, indent=1))


def rollouts_of(parts: Parts, completed: int) -> RolloutsInTurn:
    """The run's rollouts that are not completed yet; some ahead under ``--max-staleness``."""
    if not parts.args.max_staleness:
        return RolloutsInTurn(parts.setup.roll_in, parts.engine)
    assert isinstance(parts.engine, AbortableEngine)
    numbers = range(completed, parts.num_rollout)
    return RolloutsAhead(parts.setup.roll_in, parts.engine, numbers, parts.args.max_staleness)


def held_out_batch(parts: Parts) -> Batch | None:
    """The held-out samples of a roll-in that has some: the loss is measured on them, never trained."""
    samples = parts.setup.roll_in.held_out()
    if not samples:
        return None
    return parts.batch(samples)[0]


def _times(began: float, rolled_at: float, unit: str, units: float) -> dict[str, float]:
    now = time.perf_counter()
    return {
        "time/train_seconds": now - rolled_at,
        f"time/response_{unit}s_per_second": units / (now - began),
    }
