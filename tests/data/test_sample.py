"""Samples: the append rule and the checks."""

from __future__ import annotations

import pytest

from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import BatchError


def test_appending_keeps_every_aligned_list_in_step() -> None:
    sample = Sample(tokens=[1, 2])
    sample.append_generated([3, 4], [-0.5, -0.25])
    sample.append_environment([5])
    sample.append_generated([6], [-1.0])
    assert sample.tokens == [1, 2, 3, 4, 5, 6]
    assert sample.response_length == 4
    assert sample.prompt_length == 2
    assert sample.loss_mask == [1, 1, 0, 1]
    assert sample.rollout_log_probs == [-0.5, -0.25, 0.0, -1.0]
    sample.validate()


def test_environment_tokens_before_the_first_turn_get_log_prob_zero() -> None:
    sample = Sample(tokens=[1])
    sample.append_environment([2, 3])
    sample.append_generated([4], [-0.5])
    assert sample.rollout_log_probs == [0.0, 0.0, -0.5]
    assert sample.loss_mask == [0, 0, 1]


def test_teacher_log_probs_are_zero_on_environment_tokens() -> None:
    sample = Sample(tokens=[1])
    sample.append_generated([2], None, [1.0])
    sample.append_environment([3])
    assert sample.teacher_log_probs == [1.0, 0.0]


def test_a_missing_mask_means_all_ones() -> None:
    assert Sample(tokens=[1, 2, 3], response_length=2).mask == [1, 1]


def test_a_generated_span_without_log_probs_after_one_with_them_is_refused() -> None:
    sample = Sample(index=7, tokens=[1])
    sample.append_generated([2], [-0.5])
    with pytest.raises(BatchError, match="sample 7: 1 generated tokens came without rollout_log_probs"):
        sample.append_generated([3], None)
    assert sample.tokens == [1, 2]


def test_log_probs_after_a_span_without_them_are_refused() -> None:
    sample = Sample(tokens=[1])
    sample.append_generated([2], None)
    with pytest.raises(BatchError, match="an earlier one has none"):
        sample.append_generated([3], [-0.5])


def test_as_many_log_probs_as_ids_are_asked_for() -> None:
    with pytest.raises(BatchError, match="2 generated tokens came with 1 rollout_log_probs"):
        Sample(tokens=[1]).append_generated([2, 3], [-0.5])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample(index=3, tokens=[1, 2], response_length=2), "response_length is 2 with 2 tokens"),
        (Sample(tokens=[1, 2], response_length=-1), "response_length is -1"),
        (
            Sample(tokens=[1, 2], response_length=1, loss_mask=[1, 1]),
            "loss_mask has 2 entries for 1 response",
        ),
        (Sample(tokens=[1, 2], response_length=1, rollout_log_probs=[]), "rollout_log_probs has 0 entries"),
        (Sample(tokens=[1, 2], response_length=1, loss_mask=[2]), "loss_mask holds 2; only 0 and 1"),
    ],
)
def test_an_inconsistent_sample_is_named(sample: Sample, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        sample.validate()


def test_errors_name_the_task() -> None:
    assert Sample(index=3, task_id="sums").describe() == "sample 3 (task 'sums')"


@pytest.mark.parametrize("status", [SampleStatus.ABORTED, SampleStatus.FAILED])
def test_aborted_and_failed_samples_count_as_removed(status: SampleStatus) -> None:
    assert Sample(status=status).removed
    assert not Sample(status=SampleStatus.TRUNCATED).removed


def test_versions_are_kept_per_token_and_blank_on_those_of_the_environment() -> None:
    sample = Sample(tokens=[1])
    sample.append_environment([2])
    sample.append_generated([3, 4], [-0.5, -0.25], versions=["6", "7"])
    sample.append_environment([5])
    assert sample.token_versions == ["", "6", "7", ""]
    sample.validate()
    with pytest.raises(BatchError, match="1 generated tokens came without token_versions"):
        sample.append_generated([6], [-0.5])
    with pytest.raises(BatchError, match="1 generated tokens came with 2 token_versions"):
        sample.append_generated([6], [-0.5], versions=["7", "7"])
