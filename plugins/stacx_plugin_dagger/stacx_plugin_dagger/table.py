"""Where student and teacher play together: the tasks, the teacher, and the book that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stacx_core import (
    Args,
    Episode,
    EpisodeTask,
    RolloutEngine,
    SamplingParams,
    episode_metrics,
    load_teacher,
    playground,
    sequence_limit,
)
from stacx_plugin_dagger.accounting import RollInLog, account, metrics_of
from stacx_plugin_dagger.driving import Driver

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Played:
    """The episodes of one rollout, in the order of their tasks."""

    driver: Driver
    tasks: list[EpisodeTask]
    episodes: list[Episode]


class Table:
    """Plays ``n_samples_per_prompt`` episodes of ``rollout_batch_size`` tasks with whoever is to act.

    Tasks are those of ``--environment``, or the rows of ``--prompt-data`` as episodes of one turn. A teacher that
    fails to act under ``--teacher-failure drop`` or ``mask`` ends its episode, which then is not trained on.

    Args:
        args: the run's.
        tokenizer, context_length: of the student.
        scores: whether the teacher will be asked for log-probs.

    Raises:
        ConfigError, DataError, ModelError: tasks or teacher cannot be loaded.
    """

    def __init__(
        self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None, scores: bool
    ) -> None:
        self.args = args
        self.limit = sequence_limit(args, context_length)
        self.ground = playground(args, tokenizer, context_length)
        self.teacher = load_teacher(args, tokenizer, scores=scores)
        self.params = SamplingParams(
            args.rollout_max_response_len, args.rollout_temperature, args.rollout_top_p, args.rollout_top_k
        )
        self._log = RollInLog(args.output_dir)

    def play(self, rollout: int, engine: RolloutEngine) -> Played:
        """The next episodes.

        Raises:
            TeacherError: the teacher failed, under ``--teacher-failure raise`` or too often.
        """
        driver = Driver(self.args, rollout)
        tasks = self.ground.tasks.episodes(self.args, self.args.rollout_batch_size, {})
        episodes = self.ground.runner.run(tasks, engine, self.teacher, driver, self.params, rollout)
        return Played(driver, tasks, episodes)

    def finish(self, played: Played, degraded: Sequence[bool], **counts: int) -> dict[str, float]:
        """Enter a rollout into the log and return its metrics; arguments as for ``account``.

        Raises:
            EpisodeError: every episode failed.
        """
        record = account(played.driver, played.tasks, played.episodes, degraded, **counts)
        self._log.write(record)
        return {**episode_metrics(played.episodes), **metrics_of(record), **self.teacher.take_metrics()}
