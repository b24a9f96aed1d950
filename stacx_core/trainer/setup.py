"""What a run has beside the models of its roles, by the modality of its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import nn

from stacx_core.config import TrainingConfig
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.evaluation import Evaluation
from stacx_core.rollout.protocol import RollIn
from stacx_core.trainer.learner import Learner


class RunSetup(Protocol):
    """Data, rewards and engine of a run. A modality names its class in ``Modality.setup``.

    Built once per run, before any model is loaded, so that what cannot be used fails first.

    Attributes:
        roll_in: Makes the samples.
        evaluation: Measures the policy on what it is not trained on, where the run does.

    Raises:
        ConfigError, DataError, ModelError: Something cannot be used.
    """

    roll_in: RollIn
    evaluation: Evaluation | None

    def __init__(self, config: TrainingConfig, args: Args) -> None: ...

    def engine(self, model: nn.Module) -> RolloutEngine:
        """What generates with the weights of a model that is like the policy's."""

    def before_training(self, learner: Learner, engine: RolloutEngine, completed: int) -> None:
        """Called once the engine has the weights, before the first rollout of this process.

        Raises:
            StacxError: Engine and trainer do not agree.
        """

    def save(self, folder: Path) -> None:
        """Write beside the weights of a saved model what it takes to use it, such as a tokenizer."""
