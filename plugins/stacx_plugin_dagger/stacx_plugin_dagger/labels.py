"""DAgger proper: the teacher labels every state that was visited, and the student learns the labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    Turn,
    sub_seed,
)
from stacx_plugin_dagger.driving import Driver
from stacx_plugin_dagger.replay import LabelledEpisode, LabelStore
from stacx_plugin_dagger.schedules import label_seed
from stacx_plugin_dagger.table import Table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class State:
    """A visited state: a turn of an episode, both by their numbers in the rollout."""

    number: int
    episode: Episode
    turn_number: int

    @property
    def turn(self) -> Turn:
        """What was done there."""
        return self.episode.turns[self.turn_number]


class DaggerRollout(RollIn):
    """The roll-in of `online_dagger`: live episodes, or in ``--dagger-sft-mode trajectory`` the replay of a corpus.

    Raises:
        ConfigError, DataError, ModelError: tasks, teacher or corpus cannot be loaded.
    """

    takes_environment = True

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.inner: RollIn
        if args.dagger_sft_mode == "trajectory":
            replayed = args.replace("--iter-sft-corpus-dir", prompt_data=args.iter_sft_corpus_dir)
            self.inner = DatasetRollout(replayed, tokenizer, context_length)
        else:
            self.inner = LabelledRollout(args, tokenizer, context_length)
        self.num_prompts = self.inner.num_prompts

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of the next episodes."""
        return self.inner.roll(rollout, engine)

    def stop(self) -> None:
        """Break off the rollout under way."""
        self.inner.stop()

    def state(self) -> dict[str, Any]:
        """The position in the tasks or in the corpus."""
        return self.inner.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.inner.restore(state)


class LabelledRollout(RollIn):
    """Plays episodes with either executor and asks the teacher what it would have done in every state.

    Each visited state gives one sample: the ids in front of the action and behind them the label, of which every
    token is trained. Where the teacher acted, its action is the label and nothing is asked. All samples of an episode
    share a rollout id, so that a long episode weighs as much as a short one. A label that the teacher failed to give,
    under ``--teacher-failure drop`` or ``mask``, is left out. With ``--dagger-replay`` episodes of earlier rollouts
    are mixed in.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.table = Table(args, tokenizer, context_length, scores=False)
        self.num_prompts = self.table.ground.num_tasks
        self.store = LabelStore(args.output_dir) if args.dagger_replay else None

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The labelled states of the next episodes.

        Raises:
            TeacherError: the teacher failed, under ``--teacher-failure raise`` or too often.
            DataError: labels of an earlier rollout, which are to be replayed, are missing.
        """
        played = self.table.play(rollout, engine)
        states = [
            State(number, episode, turn)
            for number, episode in enumerate(played.episodes)
            for turn in range(len(episode.turns))
            if not episode.failed
        ]
        asked = [state for state in states if state.turn.executor == "student"]
        answers = self._ask(played.driver, asked)
        labels = {(state.number, state.turn_number): answer for state, answer in zip(asked, answers, strict=True)}
        samples = label_samples(states, labels)
        fitting = [s for s in samples if self.table.limit is None or len(s.tokens) <= self.table.limit]
        lost = {number for (number, _), answer in labels.items() if answer is None}
        metrics = self.table.finish(
            played,
            [number in lost for number in range(len(played.episodes))],
            labels=len(fitting),
            label_tokens=sum(len(answer.ids) for answer in answers if answer is not None),
            dropped_labels=len(samples) - len(fitting),
        )
        if self.store is None:
            return Rollout(fitting, metrics)
        fresh = [[s for s in fitting if s.rollout_id == number] for number in range(len(played.episodes))]
        replayed = self._replayed(self.store, fresh, rollout)
        return Rollout(replayed, {**metrics, "replayed_labels": float(len(replayed) - len(fitting))})

    def _replayed(self, store: LabelStore, fresh: Sequence[LabelledEpisode], rollout: int) -> list[Sample]:
        """The new episodes among old ones, in an order drawn at random, so that every step trains on both."""
        args = self.table.args
        store.add(rollout, fresh)
        episodes = [*fresh, *store.draw(rollout, args.dagger_replay, args.seed)]
        random.Random(sub_seed(args.seed, "replay order", rollout)).shuffle(episodes)
        samples = [replace(sample, rollout_id=number) for number, episode in enumerate(episodes) for sample in episode]
        return [replace(sample, index=index) for index, sample in enumerate(samples)]

    def _ask(self, driver: Driver, states: Sequence[State]) -> Sequence[TeacherAction | None]:
        """What the teacher would do in each state."""
        questions = [
            TeacherTurn(state.turn.context, state.turn.observation, self._seed(driver, state)) for state in states
        ]
        return self.table.teacher.act(questions, self.table.params) if questions else []

    def _seed(self, driver: Driver, state: State) -> int:
        episode = state.episode
        return label_seed(driver.seed, episode.task_id, episode.sample, driver.rollout, state.turn_number)

    def stop(self) -> None:
        """Break off the episodes under way."""
        self.table.ground.runner.stop()

    def state(self) -> dict[str, Any]:
        """The position in the tasks."""
        return self.table.ground.tasks.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.table.ground.tasks.restore(state)


def label_samples(states: Sequence[State], labels: Mapping[tuple[int, int], TeacherAction | None]) -> list[Sample]:
    """One sample per labelled state.

    Args:
        states: that were visited.
        labels: by number of the episode and of the turn; None where the teacher failed. A state that is not there was
            the teacher's own turn, and its action is the label.
    """
    samples: list[Sample] = []
    for state in states:
        acted = TeacherAction(state.turn.ids, state.turn.text)
        label = labels.get((state.number, state.turn_number), acted)
        if label is not None:
            samples.append(_label_sample(state, label, len(samples)))
    return samples


def _label_sample(state: State, label: TeacherAction, index: int) -> Sample:
    turn, count = state.turn, len(label.ids)
    return Sample(
        group_index=state.episode.task,
        index=index,
        rollout_id=state.number,
        prompt=turn.observation,
        tokens=[*turn.context, *label.ids],
        response=label.text,
        response_length=count,
        reward=state.episode.reward,
        executor=[TEACHER] * count,
        turn_ids=[state.turn_number] * count,
        status=SampleStatus.COMPLETED,
        metadata={"outcome": state.episode.outcome, "visited_by": turn.executor},
        task_id=state.episode.task_id,
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
