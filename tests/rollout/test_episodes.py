"""From turns to samples."""

from __future__ import annotations

import dataclasses

import pytest

from stacx_core.data.batch import samples_to_batch
from stacx_core.data.sample import SampleStatus
from stacx_core.rollout.episodes import Episode, Executor, Outcome, Turn


def turn(context: list[int], ids: list[int], executor: Executor = "student", cut: bool = False) -> Turn:
    log_probs = [-0.5 * i for i in ids] if executor == "student" else [0.0] * len(ids)
    return Turn(context, "seen", executor, ids, log_probs, "said", cut)


def episode(*turns: Turn, outcome: Outcome = "done") -> Episode:
    return Episode(3, 1, 42, "train/3", "7", list(turns), 0.25, outcome)


GROWING = (turn([5, 6], [1, 0]), turn([5, 6, 1, 0, 8, 9], [2, 0], "teacher"), turn([5, 6, 1, 0, 8, 9, 2, 0, 9], [3]))


def test_a_growing_conversation_is_one_sample() -> None:
    (sample,) = episode(*GROWING).samples(group=4, first_index=11)
    sample.validate()
    assert sample.tokens == [5, 6, 1, 0, 8, 9, 2, 0, 9, 3]
    assert sample.mask == [1, 1, 0, 0, 1, 1, 0, 1]
    assert sample.rollout_log_probs == [-0.5, 0, 0, 0, 0, 0, 0, -1.5]
    assert sample.executor == [1, 1, 0, 0, 2, 2, 0, 1]
    assert sample.turn_ids == [0, 0, -1, -1, 1, 1, -1, 2]
    assert (sample.group_index, sample.index, sample.rollout_id) == (4, 11, 11)
    assert (sample.reward, sample.task_id, sample.weight_versions) == (0.25, "train/3", ["7", "7"])
    assert sample.response == "said\nsaid\nsaid"


def test_the_labels_of_the_weights_stand_in_for_the_version() -> None:
    """Each label of a student's turn once, however many tokens it has; a teacher's turn tells none."""
    first = dataclasses.replace(GROWING[0], weight_versions=["5", "6"])
    second = dataclasses.replace(GROWING[1], weight_versions=["default", "default"])
    last = dataclasses.replace(GROWING[2], weight_versions=["6"])
    (sample,) = episode(first, second, last).samples(group=4, first_index=11)
    assert sample.weight_versions == ["5", "6", "6"]


def test_a_rewritten_conversation_goes_on_in_a_sibling() -> None:
    rewritten = episode(turn([5, 6], [1, 0]), turn([5, 7], [2, 0]), turn([5, 7, 2, 0, 8], [3, 0]))
    first, second = rewritten.samples(group=0, first_index=11)
    assert (first.tokens, first.mask) == ([5, 6, 1, 0], [1, 1])
    assert (second.tokens, second.mask) == ([5, 7, 2, 0, 8, 3, 0], [1, 1, 0, 1, 1])
    assert [s.index for s in (first, second)] == [11, 12]
    assert [s.rollout_id for s in (first, second)] == [11, 11]
    assert [s.turn_ids for s in (first, second)] == [[0, 0], [1, 1, -1, 2, 2]]


@pytest.mark.parametrize("change", [[5, 6, 1], [5, 6, 1, 1], [6, 6, 1, 0, 8]])
def test_a_context_that_lacks_any_recorded_id_is_another_conversation(change: list[int]) -> None:
    assert len(episode(turn([5, 6], [1, 0]), turn(change, [2])).samples(0, 0)) == 2


@pytest.mark.parametrize(
    ("outcome", "cut", "status"),
    [
        ("done", False, SampleStatus.COMPLETED),
        ("done", True, SampleStatus.TRUNCATED),
        ("turn_limit", False, SampleStatus.TRUNCATED),
        ("context_overflow", False, SampleStatus.TRUNCATED),
        ("env_error", False, SampleStatus.FAILED),
        ("env_timeout", False, SampleStatus.FAILED),
    ],
)
def test_the_outcome_decides_whether_a_sample_is_trained_on(outcome: Outcome, cut: bool, status: SampleStatus) -> None:
    (sample,) = episode(turn([5], [1, 0]), turn([5, 1, 0], [2], cut=cut), outcome=outcome).samples(0, 0)
    assert sample.status is status
    assert sample.metadata["outcome"] == outcome
    batch, _ = samples_to_batch([sample], mask_truncated=False, reward_key=None)
    assert batch["loss_masks"][0].tolist() == ([0, 0, 0] if outcome.startswith("env") else [1, 1, 1])


def test_an_episode_without_action_has_no_sample() -> None:
    assert episode(outcome="env_error").samples(0, 0) == []


def test_executors_and_turns_arrive_in_the_batch() -> None:
    batch, _ = samples_to_batch(episode(*GROWING).samples(0, 0), mask_truncated=False, reward_key=None)
    assert batch["executor"][0].tolist() == [1, 1, 0, 0, 2, 2, 0, 1]
    assert batch["turn_ids"][0].tolist() == [0, 0, -1, -1, 1, 1, -1, 2]
