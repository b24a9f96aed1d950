"""`stacx train --algorithm opd` with a teacher on a server that fails: never a number, and never a hang."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RESPONSES = 4
SLACK = 20.0
"""Seconds that a short run may take on a busy machine, beside what it waits for."""


@pytest.fixture
def opd(train: Any, checkpoint: Path) -> Callable[..., tuple[Any, float]]:
    """A run of two rollouts, and how long it took. The server is asked for nothing else than four scores in each."""

    def run(server: Any, *flags: str, **given: Any) -> tuple[Any, float]:
        server.model = str(checkpoint)
        options = ["--teacher", "sglang", "--teacher-url", server.url, "--parity-probe-limit", "0"]
        options += ["--teacher-retry-wait", "0.01", "--teacher-retries", "2", "--num-rollout", "2"]
        began = time.monotonic()
        done = train("opd", *options, *flags, **given)
        return done, time.monotonic() - began

    return run


def too_few(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["input_token_logprobs"].pop()
    return answer


def not_a_number(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["input_token_logprobs"][-1][0] = math.nan
    return answer


FAULTS: list[Any] = [503, too_few, not_a_number, "reset"]


def test_what_fails_twice_is_asked_again_and_the_value_is_used(
    opd: Any, fake: Any, metrics: Any, tmp_path: Path
) -> None:
    assert opd(fake(), output="calm")[0].code == 0
    done, _ = opd(fake(*[503] * 2 * RESPONSES))
    assert done.code == 0, done.err
    retries = [line.pop("rollout/teacher_retries") for line in metrics(tmp_path / "run")]
    assert retries == [2, 0]
    calm, troubled = metrics(tmp_path / "calm"), metrics(tmp_path / "run")
    assert [line["train/loss"] for line in troubled] == [line["train/loss"] for line in calm]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_for_ever_ends_the_run_by_name(opd: Any, fake: Any, fault: Any) -> None:
    server = fake(always=fault)
    done, seconds = opd(server)
    assert done.code == 1
    assert "error: the teacher failed on 4 of 4 samples" in done.err
    assert server.url in done.err
    assert "asked 3 time(s)" in done.err
    assert seconds < SLACK


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sample_it_fails_on_is_dropped_and_counted(
    opd: Any, fake: Any, metrics: Any, tmp_path: Path, fault: Any
) -> None:
    """One sample fails in each of the three tries; the server goes on to be asked in the next rollout."""
    faults = [fault, None, None, None, fault, fault]
    done, _ = opd(fake(*faults), "--teacher-failure", "drop")
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert [line["rollout/teacher_failed"] for line in lines] == [1, 0]
    assert [line["rollout/removed"] for line in lines] == [1, 0]
    assert all(math.isfinite(value) for line in lines for value in line.values())


def test_too_many_failures_end_a_run_that_drops(opd: Any, fake: Any) -> None:
    flags = ("--teacher-retries", "0", "--teacher-failure", "drop", "--teacher-max-failed", "0.5")
    done, _ = opd(fake(*[503] * 3), *flags)
    assert done.code == 1
    assert "above --teacher-max-failed 0.5" in done.err


def test_a_teacher_that_never_answers_is_given_up_in_time(opd: Any, fake: Any) -> None:
    done, seconds = opd(fake(always="hold"), "--teacher-timeout", "1")
    assert done.code == 1
    assert "no answer within 1 seconds" in done.err
    assert seconds < 3 * 1 + SLACK


def test_what_is_refused_is_not_asked_again(opd: Any, fake: Any) -> None:
    server = fake(always=400)
    done, _ = opd(server)
    assert done.code == 1
    assert f"error: {server.url}/generate answered 400: no such luck" in done.err
    assert len(server.bodies) == RESPONSES


def test_what_is_no_server_is_said_so(opd: Any, fake: Any) -> None:
    server = fake()
    server.faults_of["/model_info"] = deque([404])
    done, _ = opd(server)
    assert done.code == 1
    assert f"error: --teacher-url: {server.url}/model_info answered 404" in done.err
