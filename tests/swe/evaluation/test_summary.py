"""What is counted, and in which denominator."""

from __future__ import annotations

import pytest

from stacx_core.swe.evaluation.summary import reported, summarize
from stacx_core.swe.evaluation.trajectory import ENDPOINT_FAILED


def test_infrastructure_errors_are_in_no_denominator(episode):
    trajectories = [
        episode("a", 0, reward=1.0, counts={"solved": 1}),
        episode("a", 1, reward=0.0, counts={"unsolved": 1}),
        episode("b", 0, reward=0.5, counts={"unsolved": 1}),
        episode("b", 1, outcome="env_error", error="VerificationError: no number"),
        episode("c", 0, outcome=ENDPOINT_FAILED, error="EngineError: away"),
        episode("c", 1, outcome="turn_limit"),
    ]
    summary = summarize(["a", "b", "c"], 2, trajectories)
    assert [(t.evaluated, t.solved, t.infrastructure_errors) for t in summary.tasks] == [
        (2, 1, 0),
        (1, 0, 1),
        (1, 0, 1),
    ]
    assert [t.reward_mean for t in summary.tasks] == [0.5, 0.5, 0.0]
    assert (summary.pass_at[1].value, summary.pass_at[1].tasks) == (pytest.approx(1 / 6), 3)
    assert (summary.pass_at[2].value, summary.pass_at[2].tasks) == (1.0, 1)
    assert (summary.complete, summary.infrastructure_errors) == (False, 2)
    assert summary.verdicts == {
        "VerificationError": 1, ENDPOINT_FAILED: 1, "solved": 1, "turn_limit": 1, "unsolved": 2,
    }  # fmt: skip
    record = summary.record()
    assert (record["evaluated"], record["solved"], record["infrastructure_errors"]) == (4, 1, 2)
    assert (record["turns_mean"], record["tokens_mean"]) == (1.0, 5.0)
    assert summary.tasks[0].record()["pass@2"] == 1.0


def test_a_harness_that_crashed_is_a_failure_with_a_name(episode):
    trajectories = [
        episode("a", 0, reward=1.0, counts={"solved": 1, "harness_crashed": 1}),
        episode("a", 1, reward=0.0, counts={"unsolved": 1, "harness_crashed": 1}),
        episode("b", 0, reward=0.0, counts={"unsolved": 1}),
        episode("b", 1, outcome="env_error", error="SandboxError: gone", counts={"harness_crashed": 1}),
    ]
    assert [t.verdict for t in trajectories] == ["solved", "harness_crashed", "unsolved", "SandboxError"]
    summary = summarize(["a", "b"], 2, trajectories)
    assert [(t.evaluated, t.solved, t.harness_crashed) for t in summary.tasks] == [(2, 1, 2), (1, 0, 0)]
    assert (summary.record()["harness_crashed"], summary.record()["evaluated"]) == (2, 3)
    assert summary.verdicts["harness_crashed"] == 1
    assert summary.pass_at[1].value == 0.25


def test_a_summary_of_nothing_is_not_complete():
    summary = summarize(["a"], 1, [])
    assert (summary.complete, summary.pass_at, summary.turns_mean) == (False, {}, None)


def test_the_full_reward_solves_and_an_error_never_does(episode):
    assert episode(reward=1.0).solved
    assert episode(reward=1.5, outcome="turn_limit").solved
    assert not episode(reward=0.99).solved
    assert not episode(reward=1.0, outcome="env_timeout").solved


def test_which_k_are_reported():
    assert [reported(samples) for samples in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
