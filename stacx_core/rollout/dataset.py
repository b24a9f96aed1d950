"""Dataset rollouts: each row brings its own response; nothing is generated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import PromptStream, load_prompts
from stacx_core.data.rendering import sft_samples
from stacx_core.errors import ConfigError, DataError
from stacx_core.knobs import Args
from stacx_core.rollout.corpus import Unit, is_corpus, read_corpus
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.rollout.sampled import sequence_limit


class DatasetRollout(RollIn):
    """Takes ``rollout_batch_size`` rows of demonstrations, or episodes of a corpus that `stacx collect` wrote.

    All rows are tokenised when the run starts; a corpus brings its ids. Rows without room for any response token, and
    samples of a corpus that are too long, are left out and counted.

    Raises:
        DataError: A row is malformed, no row is left, or the corpus is of another tokenizer.
        ConfigError: Several responses per row are asked for.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        if args.n_samples_per_prompt != 1:
            raise ConfigError("--n-samples-per-prompt must be 1 here: each row brings one response, none is sampled")
        self.args = args
        limit = sequence_limit(args, context_length)
        units, self.dropped = (
            _episodes(args, tokenizer, limit) if is_corpus(args.prompt_data) else _rows(args, tokenizer, limit)
        )
        self.num_prompts = len(units)
        self.stream = PromptStream(units, seed=args.seed, shuffle=args.rollout_shuffle)

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.rollout.protocol.RollIn`; the engine is not used."""
        units = self.stream.take(self.args.rollout_batch_size)
        samples = [replace(sample, rollout_id=number) for number, unit in enumerate(units) for sample in unit]
        return Rollout(samples, {"dropped_rows": float(self.dropped)})

    def state(self) -> dict[str, Any]:
        """The position in the rows."""
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)


def _rows(args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> tuple[list[Unit], int]:
    """One sample for each row of demonstrations, and how many rows are left out."""
    rows = load_prompts(args.prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed)
    samples, dropped = sft_samples(rows, tokenizer, mode=args.apply_chat_template, max_length=limit)
    return [(sample,) for sample in samples], dropped


def _episodes(args: Args, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> tuple[list[Unit], int]:
    """The samples of each episode of a corpus, and how many samples are left out."""
    episodes = read_corpus(args.prompt_data, tokenizer)
    fitting = [tuple(s for s in episode if limit is None or len(s.tokens) <= limit) for episode in episodes]
    dropped = sum(map(len, episodes)) - sum(map(len, fitting))
    if not any(fitting):
        raise DataError(f"{args.prompt_data}: every sample is longer than the limit of {limit} tokens")
    return [episode for episode in fitting if episode], dropped
