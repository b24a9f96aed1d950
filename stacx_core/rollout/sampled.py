"""Sampled rollouts: the policy answers each prompt several times and a reward function scores the answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import PromptRow, PromptStream, load_prompts
from stacx_core.data.rendering import render_prompt
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import DataError
from stacx_core.knobs import Args
from stacx_core.rewards import load_reward, score
from stacx_core.rollout.engine import Generation, RolloutEngine, SamplingParams
from stacx_core.rollout.filters import collect_groups, load_filter
from stacx_core.rollout.oversampling import Leftovers, OverSampler, PromptGroup
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.rollout.weight_age import age_metrics, mask_older
from stacx_core.seeds import sub_seed


class SampledRollout(RollIn):
    """Takes ``rollout_batch_size`` prompts, samples ``n_samples_per_prompt`` responses of each, and scores them
    when a reward is named.

    Each response has its own seed, derived from the run's seed, the rollout and its place in it. All prompts are
    rendered when the run starts, so that a row which cannot be fails before a model is loaded; those without room for
    a response are left out and counted. A rollout renders its prompts again: that takes less than keeping the ids of
    all of them.

    Under ``--dynamic-sampling-filter`` groups that do not pass are replaced by those of further prompts, in at most
    ``--dynamic-sampling-max-rounds`` rounds. Under ``--over-sampling-batch-size`` each round begins so many groups, and
    those that are not needed are stopped; the next rollout begins with their prompts, under ``--partial-rollout`` also
    with what was sampled of their responses.

    Raises:
        DataError, ConfigError: The reward or the filter cannot be loaded, a row is malformed, or no prompt is left.
    """

    takes_environment = True
    over_samples = True

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.limit = sequence_limit(args, context_length)
        self.reward = load_reward(args.rm_type, args) if args.rm_type else None
        self.keep = load_filter(args.dynamic_sampling_filter) if args.dynamic_sampling_filter else None
        rows = load_prompts(args.prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed)
        fitting = [row for row in rows if self.has_room(row)]
        if not fitting:
            raise DataError(
                f"{args.prompt_data}: no prompt leaves room for --rollout-max-response-len "
                f"{args.rollout_max_response_len} within {self.limit} tokens"
            )
        self.num_prompts = len(fitting)
        self.dropped = len(rows) - len(fitting)
        self.rows = {row.index: row for row in fitting}
        # A mask would leave nothing to train of a group that ended under older weights.
        self.leftovers = Leftovers(args.partial_rollout, keep_ended=not args.mask_offpolicy_in_partial_rollout)
        self.stream = PromptStream(fitting, seed=args.seed, shuffle=args.rollout_shuffle)
        self.params = SamplingParams(
            args.rollout_max_response_len, args.rollout_temperature, args.rollout_top_p, args.rollout_top_k
        )

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.rollout.protocol.RollIn`.

        Raises:
            EngineError: A response could not be had.
        """
        sampled: list[Sample] = []
        aborted: list[Generation] = []

        def draw(missing: int, first: int) -> Generator[list[Sample]]:
            groups = self._begun(missing, rollout, first)
            with closing(self._answered(groups, engine, aborted)) as answers:
                for answered in answers:
                    scored = self._scored(answered, rollout, first)
                    sampled.extend(sample for group in scored for sample in group)
                    yield from scored

        kept, counts = collect_groups(self.args, self.keep, draw)
        samples = numbered(kept)
        metrics = {**reward_metrics(sampled, self.args.reward_key), "dropped_rows": float(self.dropped), **counts}
        return Rollout(samples, {**metrics, **self._unfinished(samples, aborted, rollout)})

    def _begun(self, missing: int, rollout: int, first: int) -> list[PromptGroup]:
        """The groups of a round, numbered from ``first``: those that were left over, then further prompts."""
        count, seed = self.args.over_sampling_batch_size or missing, self.args.seed
        left = self.leftovers.take(count)
        groups = [*left, *map(PromptGroup, self.stream.take(count - len(left)))]
        for p, group in enumerate(groups):
            if not group.answers:
                seeds = [sub_seed(seed, "sample", rollout, first + p, k) for k in range(self.args.n_samples_per_prompt)]
                groups[p] = PromptGroup(group.row, self._render(group.row), seeds)
        return groups

    def _answered(
        self, groups: Sequence[PromptGroup], engine: RolloutEngine, aborted: list[Generation]
    ) -> Generator[dict[int, PromptGroup]]:
        """The groups by their places, with their answers: as they come to their end, or all at once."""
        if self.args.over_sampling_batch_size is not None:
            yield from OverSampler(self.leftovers, aborted).answered(groups, engine, self.params)
            return
        answers = engine.generate([group.request for group in groups], self.params)
        yield {p: replace(group, answers=own) for p, (group, own) in enumerate(zip(groups, answers, strict=True))}

    def _scored(self, answered: Mapping[int, PromptGroup], rollout: int, first: int) -> list[list[Sample]]:
        """Scored samples of each group; ``first`` is the number of the group in place 0."""
        count, version = self.args.n_samples_per_prompt, str(rollout)
        groups = [
            [
                to_sample(group.row, group.prompt, a, self.tokenizer, group=p, index=p * count + k, version=version)
                for k, a in enumerate(group.answers)
            ]
            for p, group in ((first + place, group) for place, group in answered.items())
        ]
        if self.reward is not None:
            score([sample for group in groups for sample in group], self.reward)
        return groups

    def _unfinished(self, samples: Sequence[Sample], aborted: Sequence[Generation], rollout: int) -> dict[str, float]:
        """Metrics of what was stopped half-way, now or earlier; masks what is not to be trained."""
        if self.args.over_sampling_batch_size is None:
            return {}
        stopped = {"aborted_responses": float(len(aborted))}
        if not self.args.partial_rollout:
            return stopped
        staleness = self.args.max_staleness
        if self.args.mask_offpolicy_in_partial_rollout:
            mask_older(samples, rollout, staleness)
        return {**stopped, **age_metrics(samples, rollout, staleness)}

    def has_room(self, row: PromptRow) -> bool:
        """Whether the row's prompt leaves room for a response."""
        return self.fits(self._render(row))

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether a response has room behind these ids."""
        return self.limit is None or len(ids) + self.args.rollout_max_response_len <= self.limit

    def _render(self, row: PromptRow) -> list[int]:
        return render_prompt(row, self.tokenizer, self.args.apply_chat_template)

    def state(self) -> dict[str, Any]:
        """The position in the prompts, and the groups that are left over."""
        return {**self.stream.state(), "leftovers": self.leftovers.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)
        self.leftovers.restore(state.get("leftovers", []), self.rows, self.args.n_samples_per_prompt)


def sequence_limit(args: Args, context_length: int | None) -> int | None:
    """Most tokens of prompt and response: the smaller of ``--max-sequence-len`` and ``context_length``, which a run
    takes from the model with the shortest context."""
    limits = [n for n in (args.max_sequence_len, context_length) if n is not None]
    return min(limits, default=None)


def to_sample(
    row: PromptRow,
    ids: Sequence[int],
    answer: Generation,
    tokenizer: PreTrainedTokenizerBase,
    *,
    group: int,
    index: int,
    version: str,
) -> Sample:
    """The sample of one generated response; its tokens are the engine's."""
    sample = Sample(
        group_index=group,
        index=index,
        rollout_id=index,
        prompt=row.prompt,
        tokens=list(ids),
        label=row.label,
        metadata=row.metadata,
        task_id=str(row.index),
        weight_versions=list(dict.fromkeys(answer.weight_versions)) or [version],
        status=SampleStatus.COMPLETED if answer.finish == "stop" else SampleStatus.TRUNCATED,
    )
    sample.append_generated(answer.ids, answer.log_probs, versions=answer.weight_versions or None)
    sample.response = str(tokenizer.decode(answer.ids, skip_special_tokens=True))
    return sample


def numbered(groups: Sequence[list[Sample]]) -> list[Sample]:
    """The samples of all groups in the order in which these were begun, numbered without gaps."""
    in_order = sorted(groups, key=lambda group: group[0].group_index or 0)
    samples = [sample for group in in_order for sample in group]
    for number, group in enumerate(in_order):
        for sample in group:
            sample.group_index = number
    for index, sample in enumerate(samples):
        sample.index = sample.rollout_id = index
    return samples


def reward_metrics(samples: Sequence[Sample], key: str | None) -> dict[str, float]:
    """Mean reward, and the mean of each entry when rewards are dictionaries."""
    rewards = [s.reward if isinstance(s.reward, dict) else {"": s.reward} for s in samples if s.reward is not None]
    names = sorted({name for reward in rewards for name in reward})
    means = {n: sum(float(r[n] or 0.0) for r in rewards if n in r) / sum(n in r for r in rewards) for n in names}
    result = {f"reward_{n}_mean": m for n, m in means.items() if n}
    main = key or ""
    return {**result, "reward_mean": means[main]} if main in means else result
