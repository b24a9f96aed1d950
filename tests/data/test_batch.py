"""Conversion of samples to the training batch, the presence rule, and validation."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch

from stacx_core.batch_keys import BATCH_KEYS, BatchKey
from stacx_core.data.batch import Batch, response_keys, samples_to_batch, select, validate_batch
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import BatchError, NonFiniteError, RewardError


def make(response: int, **fields: Any) -> Sample:
    """A finished sample of one prompt token and `response` response tokens."""
    defaults: dict[str, Any] = {
        "tokens": list(range(10, 11 + response)),
        "response_length": response,
        "status": SampleStatus.COMPLETED,
    }
    return Sample(**defaults | fields)


def convert(*samples: Sample, mask_truncated: bool = False, reward_key: str | None = None) -> Batch:
    return samples_to_batch(samples, mask_truncated=mask_truncated, reward_key=reward_key)[0]


def test_every_sample_becomes_one_entry_of_each_key() -> None:
    batch = convert(
        make(2, index=4, group_index=1, reward=1.0, rollout_log_probs=[-0.5, -1.0], source="sums"),
        make(1, index=5, group_index=1, reward=0.0, rollout_log_probs=[-0.25], loss_mask=[0]),
    )
    assert [ids.tolist() for ids in batch["tokens"]] == [[10, 11, 12], [10, 11]]
    assert batch["tokens"][0].dtype == torch.int64
    assert batch["total_lengths"] == [3, 2]
    assert batch["response_lengths"] == [2, 1]
    assert [mask.tolist() for mask in batch["loss_masks"]] == [[1, 1], [0]]
    assert batch["loss_masks"][0].dtype == torch.int32
    assert batch["sample_indices"] == [4, 5]
    assert batch["group_indices"] == [1, 1]
    assert batch["rewards"] == batch["raw_reward"] == [1.0, 0.0]
    assert batch["rollout_log_probs"][0].tolist() == [-0.5, -1.0]
    assert batch["rollout_log_probs"][0].dtype == torch.float32
    assert batch["source_names"] == ["sums", ""]
    assert "teacher_log_probs" not in batch
    validate_batch(batch, required=("rewards", "rollout_log_probs"))


def test_siblings_of_a_rollout_share_its_mask_sum_and_none_gets_an_unused_id() -> None:
    batch = convert(make(2, rollout_id=3), make(3, rollout_id=3), make(4), make(5))
    assert batch["rollout_ids"] == [3, 3, 4, 5]
    assert batch["rollout_mask_sums"] == [5, 5, 4, 5]


def test_an_empty_response_is_dropped_and_counted() -> None:
    batch, counters = samples_to_batch([make(0), make(1)], mask_truncated=False, reward_key=None)
    assert batch["response_lengths"] == [1]
    assert counters["dropped_empty"] == 1.0


def test_a_response_of_one_end_token_trains() -> None:
    batch, counters = samples_to_batch([make(1)], mask_truncated=False, reward_key=None)
    assert batch["loss_masks"][0].tolist() == [1]
    assert counters["loss_tokens"] == 1.0


def test_nothing_but_empty_responses_gives_an_empty_batch() -> None:
    batch, counters = samples_to_batch([make(0), make(0)], mask_truncated=False, reward_key=None)
    assert batch["tokens"] == []
    assert counters["dropped_empty"] == 2.0
    validate_batch(batch)


def test_a_masked_truncated_sample_counts_neither_above_nor_below_the_line() -> None:
    samples = [make(4), make(6, status=SampleStatus.TRUNCATED)]
    batch, counters = samples_to_batch(samples, mask_truncated=True, reward_key=None)
    losses = torch.cat([torch.full((4,), 0.5), torch.full((6,), 9.0)])
    token_mean = (losses * torch.cat(batch["loss_masks"])).sum() / sum(batch["rollout_mask_sums"])
    assert token_mean == 0.5
    assert batch["truncated"] == [0, 1]
    assert counters["loss_tokens"] == 4.0
    assert counters["response_tokens"] == 10.0
    assert counters["truncated_frac"] == 0.5
    assert counters["empty_mask_frac"] == 0.5


def test_a_truncated_sample_trains_unless_asked_otherwise() -> None:
    assert convert(make(2, status=SampleStatus.TRUNCATED))["loss_masks"][0].tolist() == [1, 1]


def test_length_statistics() -> None:
    _, counters = samples_to_batch([make(2), make(6)], mask_truncated=False, reward_key=None)
    lengths = [counters[f"response_length_{name}"] for name in ("mean", "min", "max")]
    assert lengths == [4.0, 2.0, 6.0]


def test_a_removed_sample_stays_with_an_empty_mask_and_needs_no_values() -> None:
    batch, counters = samples_to_batch(
        [
            make(2, reward=1.0, rollout_log_probs=[-0.5, -0.5]),
            make(2, reward=0.0, rollout_log_probs=[-0.5, -0.5], remove_sample=True),
            make(1, status=SampleStatus.ABORTED),
        ],
        mask_truncated=False,
        reward_key=None,
    )
    assert batch["removed"] == [0, 1, 1]
    assert [mask.tolist() for mask in batch["loss_masks"]] == [[1, 1], [0, 0], [0]]
    assert batch["rollout_mask_sums"] == [2, 0, 0]
    assert math.isnan(batch["rewards"][2])
    assert math.isnan(batch["rollout_log_probs"][2])
    assert counters["removed"] == 2.0
    validate_batch(batch)


@pytest.mark.parametrize(
    ("name", "value"),
    [("reward", 1.0), ("group_index", 0), ("rollout_log_probs", [-0.5]), ("teacher_log_probs", [-0.5])],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_an_optional_field_is_set_on_every_sample_or_on_none(name: str, value: Any, missing: int) -> None:
    samples = [make(1, index=0), make(1, index=1), make(1, index=2)]
    for index, sample in enumerate(samples):
        setattr(sample, name, None if index == missing else value)
    with pytest.raises(BatchError, match=rf"{name} is set on 2 of 3 samples; first without it: sample {missing}\."):
        convert(*samples)


def test_the_reward_key_picks_one_entry() -> None:
    batch = convert(make(1, reward={"accuracy": 1.0, "format": 0.5}), reward_key="format")
    assert batch["rewards"] == [0.5]


@pytest.mark.parametrize(
    ("reward", "key", "message"),
    [
        ({"accuracy": 1.0}, None, "entries accuracy, but no reward_key is set"),
        ({"accuracy": 1.0}, "acuracy", "did you mean 'accuracy'"),
        (1.0, "accuracy", "reward_key is 'accuracy', but the reward is the number 1.0"),
        (math.nan, None, "sample 9 .task 'sums'.: the reward is nan"),
        (math.inf, None, "the reward is inf"),
    ],
)
def test_a_reward_that_does_not_fit_is_named(reward: Any, key: str | None, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        convert(make(1, index=9, task_id="sums", reward=reward), reward_key=key)


def test_select_takes_samples_in_the_given_order() -> None:
    batch = convert(make(1), make(2), make(3))
    batch["step"] = 5
    chosen = select(batch, [2, 0])
    assert chosen["response_lengths"] == [3, 1]
    assert chosen["step"] == 5
    assert batch["response_lengths"] == [1, 2, 3]


def test_a_missing_required_key_is_named() -> None:
    with pytest.raises(BatchError, match="lacks ref_log_probs"):
        validate_batch(convert(make(1)), required=("tokens", "ref_log_probs"))


def broken(key: str, value: Any) -> Batch:
    batch = convert(make(2, index=4, teacher_log_probs=[-0.5, 0.0], loss_mask=[1, 0], reward=1.0))
    batch[key] = value
    return batch


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rewards", [1.0, 2.0], "'rewards' has 2 entries for 1 samples"),
        ("total_lengths", [4], "sample 4: total_lengths is 4 with 3 tokens"),
        ("response_lengths", [3], "sample 4: response_lengths is 3; with 3 tokens it must lie in 0..2"),
        ("advantages", [torch.zeros(3)], "sample 4: advantages has 3 entries for a response of 2"),
        ("loss_masks", [torch.tensor([1, 2])], "sample 4: loss_masks holds a value other than 0 and 1"),
        ("teacher_log_probs", [torch.tensor([0.3, 0.0])], "sample 4: teacher_log_probs holds 0.3"),
        ("teacher_log_probs", [torch.tensor([2.0, 0.0])], "sample 4: teacher_log_probs holds 2.0"),
    ],
)
def test_a_malformed_batch_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        validate_batch(broken(key, value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_at_a_trained_token_is_refused(value: float) -> None:
    with pytest.raises(NonFiniteError, match=r"sample 4: teacher_log_probs is .* at position 0 of the response"):
        validate_batch(broken("teacher_log_probs", [torch.tensor([value, 0.0])]))


def test_a_non_finite_reward_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="sample 4: rewards is nan"):
        validate_batch(broken("rewards", [math.nan]))


def test_nan_and_the_teacher_mark_in_a_masked_slot_are_allowed() -> None:
    validate_batch(broken("teacher_log_probs", [torch.tensor([-0.5, math.nan])]))
    validate_batch(broken("teacher_log_probs", [torch.tensor([1.0, 0.3])]))


def test_a_batch_pickles() -> None:
    assert pickle.loads(pickle.dumps(convert(make(1))))["response_lengths"] == [1]


def shaped(positions: int, **inputs: Any) -> Sample:
    """A sample without tokens."""
    given = {"points": torch.zeros(positions, 3), **inputs}
    return Sample(inputs=given, response_length=positions, status=SampleStatus.COMPLETED)


def test_entries_of_inputs_become_keys_in_place_of_tokens() -> None:
    batch, counters = samples_to_batch(
        [shaped(2, name="a"), shaped(0, name="b"), shaped(3, name="c")],
        mask_truncated=False,
        reward_key=None,
        unit="point",
    )
    assert [value.shape for value in batch["points"]] == [(2, 3), (3, 3)]
    assert batch["name"] == ["a", "c"]
    assert batch["response_lengths"] == [2, 3]
    assert not {"tokens", "total_lengths"} & batch.keys()
    assert counters["response_points"] == counters["loss_points"] == 5.0
    assert not [name for name in counters if "token" in name]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (make(1), "the samples of a rollout have points and tokens; all of them need the same inputs"),
        (shaped(1, name="a"), "have name, points and points; all of them"),
    ],
)
def test_a_rollout_has_one_kind_of_inputs(other: Sample, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        convert(shaped(1), other)


@pytest.mark.parametrize("fields", [{"tokens": [1, 2]}, {"response_length": -1}])
def test_a_sample_with_inputs_has_no_tokens(fields: dict[str, Any]) -> None:
    sample = shaped(1)
    for name, value in fields.items():
        setattr(sample, name, value)
    with pytest.raises(BatchError, match="a sample with inputs has no tokens"):
        sample.validate()


POINTS = {
    **BATCH_KEYS,
    "points": BatchKey("points", "[R, 3] float32", "rollout", "where"),
    "targets": BatchKey("targets", "[R] float32", "rollout", "what"),
    "whole": BatchKey("whole", "[3] float32", "rollout", "one for all positions"),
}


def test_keys_of_a_modality_are_aligned_as_their_elements_say() -> None:
    assert set(response_keys(POINTS)) - set(response_keys()) == {"points", "targets"}


def test_keys_of_a_modality_are_validated() -> None:
    masked = shaped(2, targets=torch.tensor([1.0, math.nan]), whole=torch.zeros(3))
    masked.loss_mask = [1, 0]
    batch = convert(masked)
    validate_batch(batch, ["targets"], POINTS)
    with pytest.raises(BatchError, match="sample 0: targets has 1 entries for a response of 2"):
        validate_batch({**batch, "targets": [torch.zeros(1)]}, keys=POINTS)
    with pytest.raises(NonFiniteError, match="sample 0: targets is nan at position 1 of the response"):
        validate_batch({**batch, "loss_masks": [torch.tensor([1, 1], dtype=torch.int32)]}, keys=POINTS)
    spoilt = torch.zeros(2, 3)
    spoilt[0, 2] = math.inf
    with pytest.raises(NonFiniteError, match="sample 0: points is inf at position 0 of the response"):
        validate_batch({**batch, "points": [spoilt]}, keys=POINTS)
    validate_batch({**batch, "points": [spoilt]})
