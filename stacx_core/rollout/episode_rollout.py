"""Rollouts and evaluations in which the policy plays episodes and the environment gives the reward."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.sample import Sample
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine, SamplingParams
from stacx_core.rollout.episode_metrics import episode_metrics
from stacx_core.rollout.episode_runner import episode_runner
from stacx_core.rollout.episodes import OUTCOMES, Episode
from stacx_core.rollout.evaluation import Evaluation
from stacx_core.rollout.filters import collect_groups, load_filter
from stacx_core.rollout.playing import student_only
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.rollout.sampled import SampledRollout
from stacx_core.rollout.tasks import TaskStream, held_out_tasks


def sampled_or_played(args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> RollIn:
    """Episodes when ``--environment`` names where to play them, else responses to prompts."""
    roll_in = SampledRollout if args.environment is None else EpisodeRollout
    return roll_in(args, tokenizer, context_length)


class EpisodeRollout(RollIn):
    """Plays ``n_samples_per_prompt`` episodes of each of ``rollout_batch_size`` tasks; those of a task are a group.

    ``--dynamic-sampling-filter`` works as for sampled responses. The samples are described at
    :meth:`stacx_core.rollout.episodes.Episode.samples`.

    Raises:
        ConfigError, DataError: The environment or the filter cannot be loaded, or the first task cannot be begun.
    """

    takes_environment = True

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.args = args
        self.runner = episode_runner(args, tokenizer, context_length)
        self.keep = load_filter(args.dynamic_sampling_filter) if args.dynamic_sampling_filter else None
        self.tasks = TaskStream(args)
        self.num_prompts = args.num_tasks or 0
        self.params = SamplingParams(
            args.rollout_max_response_len, args.rollout_temperature, args.rollout_top_p, args.rollout_top_k
        )

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.rollout.protocol.RollIn`.

        Raises:
            EpisodeError: The environment failed every episode.
        """
        episodes: list[Episode] = []
        taken: dict[int, int] = {}

        def play(count: int, first: int) -> Generator[list[Sample]]:
            tasks = self.tasks.episodes(self.args, count, taken)
            played = self.runner.run(tasks, engine, None, student_only, self.params, rollout)
            index = sum(len(episode.turns) for episode in episodes)
            episodes.extend(played)
            yield from grouped_samples(played, self.args.n_samples_per_prompt, first, index)

        kept, counts = collect_groups(self.args, self.keep, play)
        samples = [sample for group in kept for sample in group]
        environment_tokens = sum(sample.response_length - sum(sample.mask) for sample in samples)
        metrics = {**episode_metrics(episodes), **counts, "environment_tokens": float(environment_tokens)}
        return Rollout(samples, metrics)

    def stop(self) -> None:
        """See :class:`stacx_core.rollout.protocol.RollIn`."""
        self.runner.stop()

    def state(self) -> dict[str, Any]:
        """The position in the tasks."""
        return self.tasks.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.tasks.restore(state)


def grouped_samples(episodes: Sequence[Episode], size: int, group: int, index: int) -> list[list[Sample]]:
    """The samples of each group of ``size`` episodes, with indices that differ.

    Args:
        episodes: Group by group.
        size: Episodes of a group.
        group: Number of the first group.
        index: Of the first sample; every turn has room for a sample of its own.
    """
    groups: list[list[Sample]] = [[] for _ in range(len(episodes) // size)]
    for position, episode in enumerate(episodes):
        groups[position // size] += episode.samples(group + position // size, index)
        index += len(episode.turns)
    return groups


class EpisodeEvaluation(Evaluation):
    """Plays every held-out task once; greedy unless ``--eval-temperature`` says otherwise.

    Raises:
        ConfigError, DataError: The environment cannot be loaded, or the first task cannot be begun.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        new_tokens = args.eval_max_response_len or args.rollout_max_response_len
        self.params = SamplingParams(new_tokens, args.eval_temperature)
        self.tasks = held_out_tasks(args)
        self.runner = episode_runner(args, tokenizer, context_length, self.tasks[0])
        self.size = len(self.tasks)

    def run(self, engine: RolloutEngine) -> dict[str, float]:
        """The metrics of the episodes, each outcome as a share of them, and their number.

        Raises:
            EpisodeError: The environment failed every episode.
        """
        episodes = self.runner.run(self.tasks, engine, None, student_only, self.params, rollout=-1)
        metrics = episode_metrics(episodes)
        shares = {f"outcome_{name}_frac": metrics.pop(f"outcome_{name}") / len(episodes) for name in OUTCOMES}
        return {**metrics, **shares, "episodes": float(len(episodes))}
