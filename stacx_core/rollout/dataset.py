"""Dataset rollouts: each row brings its own response; nothing is generated."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import PromptStream, load_prompts
from stacx_core.data.rendering import sft_samples
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.rollout.sampled import sequence_limit


class DatasetRollout(RollIn):
    """Takes ``rollout_batch_size`` rows of demonstrations.

    All rows are tokenised when the run starts. Rows without room for any response token are left out and counted.

    Raises:
        DataError: A row is malformed, or no row is left.
        ConfigError: Several responses per row are asked for.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        if args.n_samples_per_prompt != 1:
            raise ConfigError("--n-samples-per-prompt must be 1 here: each row brings one response, none is sampled")
        self.args = args
        rows = load_prompts(args.prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed)
        samples, self.dropped = sft_samples(
            rows, tokenizer, mode=args.apply_chat_template, max_length=sequence_limit(args, context_length)
        )
        self.num_prompts = len(samples)
        self.stream = PromptStream(samples, seed=args.seed, shuffle=args.rollout_shuffle)

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.rollout.protocol.RollIn`; the engine is not used."""
        samples = self.stream.take(self.args.rollout_batch_size)
        return Rollout(samples, {"dropped_rows": float(self.dropped)})

    def state(self) -> dict[str, Any]:
        """The position in the rows."""
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)
