"""DAgger proper: the teacher labels every state that was visited, and the student learns the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stacx_core import (
    TEACHER,
    Args,
    Batch,
    DatasetRollout,
    Episode,
    RollIn,
    Rollout,
    RolloutEngine,
    Sample,
    SampleStatus,
    TeacherAction,
    TeacherTurn,
)
from stacx_plugin_dagger.driving import Driver
from stacx_plugin_dagger.episodes import Table
from stacx_plugin_dagger.schedules import label_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Labels = list[list[TeacherAction | None]]
"""Per episode the label of each turn; None where the teacher failed."""


def dagger_rollout(args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> RollIn:
    """The roll-in of `online_dagger`: live, or by ``--dagger-sft-mode trajectory`` the replay of a corpus."""
    if args.dagger_sft_mode == "trajectory":
        replayed = args.replace("--iter-sft-corpus-dir", prompt_data=args.iter_sft_corpus_dir)
        return DatasetRollout(replayed, tokenizer, context_length)
    return LabelledRollout(args, tokenizer, context_length)


class LabelledRollout(RollIn):
    """Plays episodes with either executor and asks the teacher what it would have done in every state.

    Each visited state gives one sample: the ids in front of the action and behind them the label, of which every
    token is trained. Where the teacher acted, its action is the label and nothing is asked. All samples of an episode
    share a rollout id, so that a long episode weighs as much as a short one.

    Raises:
        ConfigError, DataError: the environment, the prompts or the teacher cannot be loaded.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.table = Table(args, tokenizer, context_length)
        self.num_prompts = self.table.num_prompts

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The labelled states of the next episodes."""
        table = self.table
        played = table.play(rollout, engine)
        labels = self._ask(played.driver, played.episodes)
        samples, dropped = label_samples(played.episodes, labels, table.limit)
        asked = sum(
            len(label.ids)
            for episode, given in zip(played.episodes, labels, strict=True)
            for turn, label in zip(episode.turns, given, strict=False)
            if turn.executor == "student" and label is not None
        )
        degraded = [None in given for given in labels]
        metrics = table.finish(played, degraded, label_tokens=asked, labels=len(samples), dropped_labels=dropped)
        return Rollout(samples, metrics)

    def _ask(self, driver: Driver, episodes: Sequence[Episode]) -> Labels:
        """The labels of all episodes; those of failed ones are not asked for."""
        live = [episode for episode in episodes if not episode.failed]
        places = [
            (episode, number, turn)
            for episode in live
            for number, turn in enumerate(episode.turns)
            if turn.executor == "student"
        ]
        questions = [
            TeacherTurn(turn.context, turn.observation, label_seed(driver.seed, episode, driver.rollout, number))
            for episode, number, turn in places
        ]
        answers = iter(self.table.teacher.act(questions, self.table.params))
        return [
            [
                next(answers) if turn.executor == "student" else TeacherAction(turn.ids, turn.text)
                for turn in (episode.turns if not episode.failed else ())
            ]
            for episode in episodes
        ]

    def state(self) -> dict[str, Any]:
        """The position in the tasks."""
        return self.table.tasks.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.table.tasks.restore(state)


def label_samples(episodes: Sequence[Episode], labels: Labels, limit: int | None) -> tuple[list[Sample], int]:
    """One sample per label.

    Args:
        episodes: what was played.
        labels: of each episode's turns, in order; an episode without labels gives no sample.
        limit: most tokens of a sample; labels that do not fit are left out.

    Returns:
        The samples, and how many labels did not fit.
    """
    samples: list[Sample] = []
    dropped = 0
    for number, (episode, given) in enumerate(zip(episodes, labels, strict=True)):
        for turn, label in enumerate(given):
            if label is None:
                continue
            sample = _label_sample(episode, turn, label)
            if limit is not None and len(sample.tokens) > limit:
                dropped += 1
                continue
            sample.index, sample.rollout_id = len(samples), number
            samples.append(sample)
    return samples, dropped


def _label_sample(episode: Episode, number: int, label: TeacherAction) -> Sample:
    turn = episode.turns[number]
    return Sample(
        group_index=episode.task,
        prompt=turn.observation,
        tokens=[*turn.context, *label.ids],
        response=label.text,
        response_length=len(label.ids),
        reward=episode.reward,
        executor=[TEACHER] * len(label.ids),
        turn_ids=[number] * len(label.ids),
        status=SampleStatus.COMPLETED,
        metadata={"outcome": episode.outcome, "visited_by": turn.executor},
        task_id=episode.task_id,
    )


def weigh_turns(batch: Batch, args: Args) -> dict[str, float]:
    """Under ``--dagger-turn-weight uniform`` let every turn of an episode count the same, however long its label.

    A sample's loss is divided by its entry in ``rollout_mask_sums``: by default the label tokens of its episode, here
    its own times the number of labelled turns of the episode.
    """
    if args.dagger_turn_weight == "by_token":
        return {}
    own = [int(mask.sum()) for mask in batch["loss_masks"]]
    turns = Counter(rollout for rollout, tokens in zip(batch["rollout_ids"], own, strict=True) if tokens)
    batch["rollout_mask_sums"] = [n * turns[rollout] for n, rollout in zip(own, batch["rollout_ids"], strict=True)]
    return {}
