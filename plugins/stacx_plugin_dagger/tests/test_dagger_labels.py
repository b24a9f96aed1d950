"""From played turns to labelled states, and how much each counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stacx_core import Args, Episode, TeacherAction, Turn, sum_of_sample_mean
from stacx_plugin_dagger.accounting import outcome_of
from stacx_plugin_dagger.labels import State, label_samples, weigh_turns


def turn(executor: Any, context: list[int], ids: list[int]) -> Turn:
    return Turn(context, "seen", executor, ids, [-0.1] * len(ids), "done")


@pytest.fixture
def episode() -> Episode:
    """The student, then the teacher, then the student."""
    turns = [turn("student", [5], [6, 0]), turn("teacher", [5, 6, 0, 7], [8, 0]), turn("student", [9, 9], [3])]
    return Episode(task=4, sample=1, seed=0, task_id="train/4", turns=turns, reward=0.5)


def test_a_sample_per_state_with_the_label_behind_what_was_seen(episode: Episode) -> None:
    states = [State(2, episode, number) for number in range(3)]
    labels = {(2, 0): TeacherAction([1, 2, 0], "better"), (2, 2): TeacherAction([4, 0], "best")}
    samples = label_samples(states, labels)
    assert [sample.tokens for sample in samples] == [[5, 1, 2, 0], [5, 6, 0, 7, 8, 0], [9, 9, 4, 0]]
    assert [sample.response_length for sample in samples] == [3, 2, 2]
    assert [sample.mask for sample in samples] == [[1, 1, 1], [1, 1], [1, 1]]
    assert [sample.response for sample in samples] == ["better", "done", "best"]
    assert {sample.rollout_id for sample in samples} == {2}
    assert [sample.index for sample in samples] == [0, 1, 2]


def test_a_state_whose_label_failed_is_left_out(episode: Episode) -> None:
    states = [State(0, episode, number) for number in range(3)]
    samples = label_samples(states, {(0, 0): None, (0, 2): TeacherAction([4, 0], "best")})
    assert [sample.turn_ids for sample in samples] == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("by_token", 5 / 4 + 7), ("uniform", (1 + 4 / 3) / 2 + 7)],
)
def test_the_weight_of_a_turn(weight: str, expected: float) -> None:
    """Labels of one and of three tokens in one episode, and an episode of one label, with losses 1, 4/3 and 7."""
    masks = [torch.tensor([1]), torch.tensor([1, 1, 1]), torch.tensor([1, 0])]
    batch: dict[str, Any] = {"loss_masks": masks, "rollout_ids": [0, 0, 1], "rollout_mask_sums": [4, 4, 1]}
    assert weigh_turns(batch, Args.of(dagger_turn_weight=weight)) == {}
    losses = torch.tensor([1.0, 1.0, 1.0, 2.0, 7.0, 9.0])
    assert sum_of_sample_mean(losses, [1, 3, 2], masks, batch["rollout_mask_sums"]).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("executors", "ending", "degraded", "expected"),
    [
        (["student", "teacher"], "done", False, "mixed"),
        (["student", "student"], "done", False, "pure_student"),
        (["student", "student"], "turn_limit", False, "cap_full"),
        (["student"], "context_overflow", False, "cap_full"),
        (["teacher", "teacher"], "turn_limit", False, "full_teacher"),
        (["student", "teacher"], "done", True, "degraded"),
        (["student"], "teacher_failed", False, "degraded"),
        (["student", "teacher"], "env_error", False, "aborted"),
        (["student"], "env_timeout", False, "aborted"),
        ([], "context_overflow", False, "aborted"),
    ],
)
def test_how_an_episode_counts(executors: list[Any], ending: Any, degraded: bool, expected: str) -> None:
    turns = [turn(executor, [1], [2]) for executor in executors]
    assert outcome_of(Episode(0, 0, 0, turns=turns, outcome=ending), degraded) == expected
