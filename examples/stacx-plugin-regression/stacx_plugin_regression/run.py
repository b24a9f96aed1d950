"""What a run has beside its roles: points, an engine that predicts, and an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from stacx_core import (
    Args,
    ConfigError,
    DataError,
    Evaluation,
    Learner,
    RollIn,
    Rollout,
    RolloutEngine,
    RunSetup,
    Sample,
    TrainingConfig,
    read_records,
    sub_seed,
)
from stacx_plugin_regression.line import Line


def read_points(source: str) -> list[tuple[Tensor, Tensor]]:
    """``[R, 3]`` inputs and ``[R]`` targets of each row, ``{"inputs": [[1, 2, 3], ...], "targets": [4, ...]}``.

    Raises:
        DataError: A row is something else.
    """
    rows = []
    for where, record in read_records(source):
        try:
            inputs, targets = (torch.tensor(record[key], dtype=torch.float32) for key in ("inputs", "targets"))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{where}: it needs `inputs` and `targets`, lists of numbers") from error
        if inputs.shape != (len(targets), 3):
            raise DataError(f"{where}: inputs of shape {list(inputs.shape)} for {len(targets)} targets")
        rows.append((inputs, targets))
    return rows


class Predictor:
    """The engine: it says what the line says."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def predict(self, inputs: Tensor) -> Tensor:
        """``[R]`` fp32 for ``[R, 3]``."""
        weight = next(self.model.parameters())
        with torch.no_grad():
            return cast(Tensor, self.model(inputs.to(weight))).squeeze(-1).float().cpu()

    def weights_at_rest(self) -> AbstractContextManager[None]:
        """See :class:`stacx_core.RolloutEngine`."""
        return nullcontext()

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Predict with this model from now on."""
        self.model = model

    def close(self) -> None:
        """Nothing is held."""


class PointRollIn(RollIn):
    """Takes the rows in turn, with the noise of ``--input-noise``, which depends on seed and rollout alone."""

    def __init__(self, args: Args) -> None:
        self.args = args
        self.rows = read_points(args.prompt_data)
        self.num_prompts = len(self.rows)
        self.taken = 0

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.RollIn`; nothing is asked of the engine but how far off it is."""
        generator = torch.Generator().manual_seed(sub_seed(self.args.seed, "noise", rollout))
        samples, misses = [], []
        for index in range(self.args.rollout_batch_size):
            inputs, targets = self.rows[(self.taken + index) % len(self.rows)]
            misses.append(float((cast(Predictor, engine).predict(inputs) - targets).abs().mean()))
            noisy = inputs + self.args.input_noise * torch.randn(inputs.shape, generator=generator)
            entries = {"inputs": noisy, "targets": targets}
            samples.append(Sample(index=index, inputs=entries, response_length=len(targets)))
        self.taken += len(samples)
        return Rollout(samples, {"engine_error": sum(misses) / len(misses)})

    def state(self) -> dict[str, Any]:
        """How many rows were taken."""
        return {"taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on behind them."""
        self.taken = state["taken"]


class HeldOutError(Evaluation):
    """Mean squared error on rows that nothing is trained on."""

    def __init__(self, source: str) -> None:
        self.rows = read_points(source)
        self.size = len(self.rows)

    def run(self, engine: RolloutEngine) -> dict[str, float]:
        """See :class:`stacx_core.Evaluation`."""
        errors = [(cast(Predictor, engine).predict(inputs) - targets) ** 2 for inputs, targets in self.rows]
        return {"squared_error": float(torch.cat(errors).mean())}


class PointSetup(RunSetup):
    """See :class:`stacx_core.RunSetup`."""

    def __init__(self, config: TrainingConfig, args: Args) -> None:
        self.roll_in = PointRollIn(args)
        self.evaluation = HeldOutError(args.eval_prompt_data) if args.eval_prompt_data is not None else None

    def engine(self, model: nn.Module) -> RolloutEngine:
        """The engine, which begins with the policy's own weights."""
        return cast(RolloutEngine, Predictor(model))

    def before_training(self, learner: Learner, engine: RolloutEngine, completed: int) -> None:
        """Nothing to compare."""

    def save(self, folder: Path) -> None:
        """Nothing to add to a saved line."""


def write_predictions(config: TrainingConfig, args: Args, output: Path, count: int) -> None:
    """Behind ``stacx sample``: a JSON line of predictions for each of so many rows, from the first on again at the end.

    Raises:
        ConfigError, DataError, ModelError: Rows or model cannot be used.
    """
    if args.prompt_data is None:
        raise ConfigError("name the points with --prompt-data")
    rows: Sequence[tuple[Tensor, Tensor]] = read_points(args.prompt_data)
    predictor = Predictor(Line.from_pretrained(args.hf_checkpoint))
    with output.open("w", encoding="utf-8") as lines:
        for number in range(count):
            lines.write(json.dumps(predictor.predict(rows[number % len(rows)][0]).tolist()) + "\n")
