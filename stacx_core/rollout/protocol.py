"""Roll-in protocols: how a recipe's samples come about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from transformers import PreTrainedTokenizerBase

from stacx_core.data.sample import Sample
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine


@dataclass(frozen=True)
class Rollout:
    """The samples of one rollout, and metrics about how they were made."""

    samples: list[Sample]
    metrics: dict[str, float]


class RollIn(Protocol):
    """Makes the samples of each rollout. A recipe names its class in ``TrainingConfig.rollout``.

    Built once per run, before any model is loaded, so that unusable data fails first; of language models with these
    arguments, else as its modality's setup does it. ``context_length`` is the most tokens that every model of the run
    takes: the policy, a critic, a reference, a reward model.

    Attributes:
        num_prompts: Length of a pass over the data; 0 where there is no end to it.
        teacher: The teacher that scores or acts, where there is one; the parity probe asks it too.
        takes_environment: Whether ``--environment``, when given, stands in for prompts and reward.
        over_samples: Whether it begins more groups than it needs under ``--over-sampling-batch-size``.
    """

    num_prompts: int
    takes_environment: ClassVar[bool] = False
    over_samples: ClassVar[bool] = False

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None: ...

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of rollout number ``rollout``."""

    def stop(self) -> None:
        """Break off the rollout under way, from another thread, as far as that can be done; no other follows."""
        return

    def held_out(self) -> list[Sample]:
        """Samples to measure the loss on without training, when evaluations are due; empty for none."""
        return []

    def state(self) -> dict[str, Any]:
        """JSON-serialisable position in the data."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
