"""The roll-in of both recipes: preferences from a data set, tokenised once when the run starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stacx_core import Args, PromptStream, Rollout, RolloutEngine, Sample, sequence_limit
from stacx_plugin_preference.kto import MISMATCHED
from stacx_plugin_preference.units import Unit, load_units, with_mismatched

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PairRollout:
    """Takes ``rollout_batch_size`` pairs (single responses with ``--dpo-loss-type kto``) from the data.

    A row is left out, and counted, when the length limit leaves nothing of a response, when it leaves nothing that
    tells the two responses apart, and under ``--mask-truncated`` when it cuts one at all: such a pair would add
    ln 2 to the loss and nothing to the gradient. Two responses that are the same in the data are kept and counted.

    Raises:
        DataError: a row is malformed, or none is left.
        ConfigError: the settings and the data do not fit.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        limit = sequence_limit(args, context_length)
        self.args = args
        self.train = load_units(args.prompt_data, args, tokenizer, limit)
        held = args.eval_pair_data
        self.held = load_units(held, args, tokenizer, limit, args.eval_limit).units if held is not None else []
        self.num_prompts = len(self.train.units)
        self.stream = PromptStream(self.train.units, seed=args.seed, shuffle=args.rollout_shuffle)

    @classmethod
    def check_samples(cls, args: Args, samples: Sequence[Sample]) -> list[Sample]:
        """What the samples that `stacx check` generates are in a rollout: for ``kto`` each has a mismatched twin."""
        if args.get("dpo_loss_type") != "kto":
            return list(samples)
        units = with_mismatched([replace(sample, pair_id=None) for sample in samples], "the generated samples", None)
        return [
            sample if first else replace(sample, index=None)
            for unit in units
            for sample, first in zip(unit, (True, False), strict=True)
        ]

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of the next pairs; the engine is not used."""
        units = self.stream.take(self.args.rollout_batch_size)
        counted = {"dropped_rows": float(self.train.dropped), "identical_pairs": float(self.train.identical)}
        return Rollout(_numbered(units), counted)

    def held_out(self) -> list[Sample]:
        """The samples of ``--eval-pair-data``."""
        return _numbered(self.held)

    def state(self) -> dict[str, Any]:
        """The position in the rows."""
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)


def _numbered(units: Sequence[Unit]) -> list[Sample]:
    """Fresh samples of the units, each unit with a number of its own as rollout, and as pair unless it is kto's."""
    samples: list[Sample] = []
    for number, unit in enumerate(units):
        pair = None if any(MISMATCHED in sample.metadata for sample in unit) else number
        for sample in unit:
            samples.append(replace(sample, index=len(samples), rollout_id=number, pair_id=pair))
    return samples
