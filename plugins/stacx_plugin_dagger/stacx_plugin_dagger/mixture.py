"""The roll-in of both mixtures: everybody's own tokens, and what the teacher says of the student's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stacx_core import STUDENT, TEACHER, TEACHER_TOKEN, Args, Episode, RollIn, Rollout, RolloutEngine, Sample
from stacx_plugin_dagger.table import Table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MixtureRollout(RollIn):
    """Plays episodes with either executor and trains on what was really done.

    ``teacher_log_probs`` holds the sentinel +1.0 on tokens that the teacher wrote, the teacher's log-probs on those
    that the student wrote, and 0.0 where the loss mask is 0. The teacher scores whole samples that have a token of the
    student; what it played by itself is not scored again.

    Raises:
        ConfigError, DataError, ModelError: the tasks or the teacher cannot be loaded, or it has no log-probs.
    """

    takes_environment = True

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.table = Table(args, tokenizer, context_length, scores=True)
        self.teacher = self.table.teacher
        self.num_prompts = self.table.ground.num_tasks

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of the next episodes.

        Raises:
            TeacherError: the teacher failed, under ``--teacher-failure raise`` or too often.
        """
        played = self.table.play(rollout, engine)
        samples_of = self._samples(played.episodes)
        samples = [sample for own in samples_of for sample in own]
        asked = [sample for sample in samples if not sample.removed and STUDENT in (sample.executor or ())]
        told = self.teacher.label(asked, 0)
        for sample in samples:
            if not sample.removed:
                sample.teacher_log_probs = routed(sample)
        degraded = [
            not episode.failed and any(sample.removed or not any(sample.mask) for sample in own)
            for episode, own in zip(played.episodes, samples_of, strict=True)
        ]
        scored = sum(sample.response_length for sample in asked)
        return Rollout(samples, {**self.table.finish(played, degraded, scored_tokens=scored), **told})

    def _samples(self, episodes: Sequence[Episode]) -> list[list[Sample]]:
        """The samples of each episode; every turn has room for an index of its own."""
        samples_of, index = [], 0
        for position, episode in enumerate(episodes):
            samples_of.append(episode.samples(position // self.table.args.n_samples_per_prompt, index))
            index += len(episode.turns)
        return samples_of

    def stop(self) -> None:
        """Break off the episodes under way."""
        self.table.ground.runner.stop()

    def state(self) -> dict[str, Any]:
        """The position in the tasks."""
        return self.table.ground.tasks.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.table.ground.tasks.restore(state)


def routed(sample: Sample) -> list[float]:
    """``teacher_log_probs`` by who wrote each token: the sentinel, the teacher's score, or 0.0 where none trains."""
    scores = sample.teacher_log_probs or [0.0] * sample.response_length
    writers = sample.executor or []
    return [
        0.0 if not trained else TEACHER_TOKEN if writer == TEACHER else score
        for trained, writer, score in zip(sample.mask, writers, scores, strict=True)
    ]
