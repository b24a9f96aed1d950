"""What there is to play: an environment's tasks, or prompts as episodes of one turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.prompts import PromptRow, PromptStream, load_prompts
from stacx_core.data.sample import Message, Sample
from stacx_core.errors import DataError
from stacx_core.knobs import Args
from stacx_core.rewards import load_reward, score
from stacx_core.rewards.scoring import Scorer
from stacx_core.rollout.environment import Step
from stacx_core.rollout.episode_runner import EpisodeRunner, episode_runner
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.rollout.playing import RunsEpisodes
from stacx_core.rollout.tasks import TaskStream


class PromptTask:
    """Shows the prompt of one row and scores the action by ``--rm-type``, or 0 without one.

    Args:
        rows: of which the seed of the episode picks one by its index.
        reward: of a whole sample.
        key: entry of a reward that is a dictionary.
    """

    def __init__(self, rows: dict[int, PromptRow], reward: Scorer | None, key: str | None) -> None:
        self._rows = rows
        self._reward = reward
        self._key = key
        self._row = next(iter(rows.values()))

    def reset(self, seed: int) -> str | list[Message]:
        """The prompt of row ``seed``."""
        self._row = self._rows[seed]
        return self._row.prompt

    def step(self, action: str) -> Step:
        """The reward of the action; the episode is over."""
        if self._reward is None:
            return Step("", done=True)
        row = self._row
        sample = Sample(
            prompt=row.prompt, response=action, label=row.label, metadata=row.metadata, task_id=str(row.index)
        )
        score([sample], self._reward)
        reward: Any = sample.reward
        return Step("", reward[self._key] if self._key is not None else reward, done=True)

    def render(self) -> str:
        """The prompt and its label."""
        return f"{self._row.prompt}\n\nlabel: {self._row.label}"

    def close(self) -> None:
        """Nothing to let go of."""


class PromptTasks:
    """Deals out the rows of ``--prompt-data`` as episodes, with the interface of a ``TaskStream``.

    Raises:
        DataError, ConfigError: there are no prompts, a row is malformed, or the reward cannot be loaded.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        if args.prompt_data is None:
            raise DataError("there is nothing to play: name an --environment, or prompts with --prompt-data")
        rows = load_prompts(args.prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed)
        reward = load_reward(args.rm_type, args) if args.rm_type else None
        self.count = len(rows)
        by_index = {row.index: row for row in rows}
        self.runner = EpisodeRunner(
            args, tokenizer, context_length, lambda: PromptTask(by_index, reward, args.reward_key)
        )
        self._stream = PromptStream(rows, seed=args.seed, shuffle=args.rollout_shuffle)

    def episodes(self, args: Args, count: int, taken: dict[int, int]) -> list[EpisodeTask]:
        """See :meth:`stacx_core.rollout.tasks.TaskStream.episodes`; a task is the index of a row."""
        tasks = []
        for row in self._stream.take(count):
            place = row.index
            first = taken.get(place, 0)
            taken[place] = first + args.n_samples_per_prompt
            tasks += [EpisodeTask(place, sample, place, str(place)) for sample in range(first, taken[place])]
        return tasks

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self._stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._stream.restore(state)


@dataclass(frozen=True)
class Playground:
    """Tasks, and what plays them.

    Args:
        tasks: in the order of training.
        runner: of their episodes.
        num_tasks: length of a pass over them; 0 where there is no end to it.
    """

    tasks: TaskStream | PromptTasks
    runner: RunsEpisodes
    num_tasks: int


def playground(args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> Playground:
    """The tasks of ``--environment``, or the rows of ``--prompt-data``.

    Raises:
        DataError, ConfigError: there is neither, or it cannot be loaded.
    """
    if args.environment is not None:
        return Playground(TaskStream(args), episode_runner(args, tokenizer, context_length), args.num_tasks or 0)
    prompts = PromptTasks(args, tokenizer, context_length)
    return Playground(prompts, prompts.runner, prompts.count)
