"""Evaluation on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import load_prompts
from stacx_core.data.rendering import render_prompt
from stacx_core.errors import DataError
from stacx_core.knobs import Args
from stacx_core.rewards import load_reward, score
from stacx_core.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from stacx_core.rollout.sampled import reward_metrics, sequence_limit, to_sample
from stacx_core.seeds import sub_seed


class Evaluation(Protocol):
    """Measures the policy on what it is not trained on.

    Attributes:
        size: How many samples it draws.
        pictures: Files that the last run drew, for who follows the run.
    """

    size: int
    pictures: Sequence[Path] = ()

    def run(self, engine: RolloutEngine) -> dict[str, float]:
        """Metrics of the policy's current weights; the same each time for the same weights."""


class PromptEvaluation(Evaluation):
    """Answers every held-out prompt once and scores the answers; greedy unless ``--eval-temperature`` says otherwise.

    Raises:
        DataError: A prompt is malformed or leaves no room for a response.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.reward = load_reward(args.eval_rm_type or args.rm_type, args)
        rows = load_prompts(
            args.eval_prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed + 1
        )
        self.rows = rows[: args.eval_limit]
        self.size = len(self.rows)
        self.ids = [render_prompt(row, tokenizer, args.apply_chat_template) for row in self.rows]
        new_tokens = args.eval_max_response_len or args.rollout_max_response_len
        self.params = SamplingParams(new_tokens, args.eval_temperature)
        limit = sequence_limit(args, context_length)
        for row, ids in zip(self.rows, self.ids, strict=True):
            if limit is not None and len(ids) + new_tokens > limit:
                raise DataError(
                    f"{args.eval_prompt_data}: row {row.index} has {len(ids)} tokens, which leaves no room for "
                    f"{new_tokens} more within {limit}; lower --eval-max-response-len"
                )

    def run(self, engine: RolloutEngine) -> dict[str, float]:
        """Mean reward, share of truncated answers, number of prompts."""
        requests = [GenerationRequest(ids, [sub_seed(self.args.seed, "eval", i)]) for i, ids in enumerate(self.ids)]
        answers = engine.generate(requests, self.params)
        samples = [
            to_sample(row, ids, answer[0], self.tokenizer, group=i, index=i, version="")
            for i, (row, ids, answer) in enumerate(zip(self.rows, self.ids, answers, strict=True))
        ]
        score(samples, self.reward)
        truncated = sum(answer[0].finish == "length" for answer in answers) / len(answers)
        metrics = reward_metrics(samples, self.args.reward_key)
        return {**metrics, "truncated_frac": truncated, "prompts": float(len(answers))}
