"""The roll-in of both recipes: preferences from a data set, tokenised once when the run starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stacx_core import (
    Args,
    ConfigError,
    DataError,
    PromptRow,
    PromptStream,
    Rollout,
    RolloutEngine,
    Sample,
    SampleStatus,
    sequence_limit,
    sft_sample,
)
from stacx_plugin_preference.kto import MISMATCHED
from stacx_plugin_preference.rows import MARGIN, Answer, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Unit = tuple[Sample, ...]
"""What is trained on together: a pair, chosen first; or for kto a response and its mismatched twin."""


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
        self.train = _load(args.prompt_data, args, tokenizer, limit, None)
        self.held = _load(args.eval_pair_data, args, tokenizer, limit, args.eval_limit) if args.eval_pair_data else None
        self.num_prompts = len(self.train.units)
        self.stream = PromptStream(self.train.units, seed=args.seed, shuffle=args.rollout_shuffle)

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of the next pairs; the engine is not used."""
        units = self.stream.take(self.args.rollout_batch_size)
        counted = {"dropped_rows": float(self.train.dropped), "identical_pairs": float(self.train.identical)}
        return Rollout(_numbered(units), counted)

    def held_out(self) -> list[Sample] | None:
        """The samples of ``--eval-pair-data``, or None without it."""
        return None if self.held is None else _numbered(self.held.units)

    def state(self) -> dict[str, Any]:
        """The position in the rows."""
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)


@dataclass(frozen=True)
class Loaded:
    """The units of a source, how many of its rows were left out, and how many pairs have two equal sides."""

    units: list[Unit]
    dropped: int
    identical: int


def _load(
    source: str, args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None, count: int | None
) -> Loaded:
    rows = read_rows(source, args)[:count]
    units = [unit for row in rows if (unit := _unit(row, args, tokenizer, limit)) is not None]
    dropped = len(rows) - len(units)
    if not units:
        raise DataError(
            f"{source}: all {len(rows)} rows lose a response to the limit of {limit} tokens; raise --max-sequence-len"
        )
    if dropped:
        logger.warning(
            "%s: %d of %d rows are left out, whose responses the limit of %d tokens cuts away",
            *(source, dropped, len(rows), limit),
        )
    identical = sum(len(unit) == 2 and unit[0].tokens == unit[1].tokens for unit in units)
    if identical:
        logger.warning("%s: %d pairs have the same response twice, which teaches nothing", source, identical)
    if args.get("dpo_loss_type") == "kto":
        units = _with_mismatched([sample for (sample,) in units], source, limit)
    return Loaded(units, dropped, identical)


def _unit(row: Sequence[Answer], args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> Unit | None:
    """The samples of a row, or None when the limit takes what is to be learnt from it."""
    unit = [_sample(answer, args, tokenizer, limit) for answer in row]
    samples = tuple(sample for sample in unit if sample is not None)
    cut = any(sample.status is SampleStatus.TRUNCATED for sample in samples)
    alike = len(samples) == 2 and samples[0].tokens == samples[1].tokens
    if len(samples) < len(row) or (cut and (alike or args.mask_truncated)):
        return None
    return samples


def _sample(answer: Answer, args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> Sample | None:
    mode = args.apply_chat_template
    if answer.whole_text:
        if mode == "always":
            raise ConfigError(
                f"{answer.where}: --apply-chat-template always cannot fit a text without prompt column; "
                "give the prompt a column of its own, or use auto"
            )
        mode = "never"
    context = 0 if isinstance(answer.prompt, str) else len(answer.prompt)
    if isinstance(answer.completion, str):
        row = PromptRow(answer.prompt, answer.completion, 0, where=answer.where)
    else:
        row = PromptRow([*answer.prompt, *answer.completion], None, 0, where=answer.where)
    sample = sft_sample(row, tokenizer, mode=mode, max_length=limit, context=context)
    if sample is None:
        return None
    notes = {} if answer.margin is None else {MARGIN: answer.margin}
    return replace(sample, prompt=answer.prompt, is_chosen=answer.is_chosen, metadata=notes, task_id=answer.where)


def _with_mismatched(samples: Sequence[Sample], source: str, limit: int | None) -> list[Unit]:
    """Each sample with a twin: its prompt, and the response of the next sample that has another prompt."""
    prompts = [tuple(sample.tokens[: sample.prompt_length]) for sample in samples]
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    if len(numbers) < 2:
        raise DataError(f"{source}: kto measures its baseline across prompts, but all rows have the same prompt")
    same = [numbers[prompt] for prompt in prompts]
    units: list[Unit] = []
    for place, sample in enumerate(samples):
        following = (other % len(samples) for other in range(place + 1, place + len(samples)))
        other = next(other for other in following if same[other] != same[place])
        units.append((sample, _mismatched(sample, samples[other], limit)))
    return units


def _mismatched(sample: Sample, other: Sample, limit: int | None) -> Sample:
    prompt = sample.tokens[: sample.prompt_length]
    room = other.response_length if limit is None else min(other.response_length, limit - len(prompt))
    return replace(
        sample,
        tokens=[*prompt, *other.tokens[other.prompt_length :][:room]],
        response=other.response,
        response_length=room,
        loss_mask=other.mask[:room],
        metadata={MISMATCHED: True},
    )


def _numbered(units: Sequence[Unit]) -> list[Sample]:
    """Fresh samples of the units, each unit with a number of its own as rollout, and as pair unless it is kto's."""
    samples: list[Sample] = []
    for number, unit in enumerate(units):
        pair = None if any(MISMATCHED in sample.metadata for sample in unit) else number
        for sample in unit:
            samples.append(replace(sample, index=len(samples), rollout_id=number, pair_id=pair))
    return samples
