"""From rows of preference data to the samples that are trained on together, and which rows are left out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stacx_core import Args, ConfigError, DataError, PromptRow, Sample, SampleStatus, sft_sample
from stacx_plugin_preference.kto import MISMATCHED
from stacx_plugin_preference.rows import MARGIN, Answer, read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Unit = tuple[Sample, ...]
"""What is trained on together: a pair, chosen first; or for kto a response and its mismatched twin."""


@dataclass(frozen=True)
class Loaded:
    """The units of a source, how many of its rows were left out, and how many pairs have two equal sides."""

    units: list[Unit]
    dropped: int
    identical: int


def load_units(
    source: str, args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None, count: int | None = None
) -> Loaded:
    """The units of a source, tokenised.

    Args:
        source: JSONL or Parquet file, or a dataset folder.
        args: names of columns, the chat template, whether rows are paired.
        tokenizer: of the policy.
        limit: most tokens of prompt and response.
        count: use only the first so many rows.

    Raises:
        DataError: a row is malformed, naming file and line; or none is left.
        ConfigError: the settings and the data do not fit.
    """
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
        units = with_mismatched([sample for (sample,) in units], source, limit)
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


def with_mismatched(samples: Sequence[Sample], source: str, limit: int | None) -> list[Unit]:
    """Each sample with a twin: its prompt, and the response of the next sample that has another prompt."""
    prompts = [tuple(sample.tokens[: sample.prompt_length]) for sample in samples]
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    if len(numbers) < 2:
        raise DataError(f"{source}: kto measures its baseline across prompts, but all rows have the same prompt")
    partners = _next_different([numbers[prompt] for prompt in prompts])
    return [
        (sample, _mismatched(sample, samples[other], limit)) for sample, other in zip(samples, partners, strict=True)
    ]


def _next_different(values: Sequence[int]) -> list[int]:
    """For each place of a ring the next place with another value; at least two values differ."""
    count = len(values)
    found = [0] * count
    # Twice around: the last places learn from the first ones, which the first time around did not know yet.
    for place in reversed(range(2 * count - 1)):
        here, after = place % count, (place + 1) % count
        found[here] = after if values[here] != values[after] else found[after]
    return found


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
