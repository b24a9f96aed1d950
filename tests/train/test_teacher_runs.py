"""On-policy distillation through the command: good teachers, and every way in which one may fail."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

TEACHERS = '''
"""Teachers of these tests, which count their calls."""

import threading

from stacx_core import TeacherAction, TeacherScore

calls = []


def good(sample):
    return TeacherScore([-1.0 - 0.1 * token for token in sample.tokens[sample.prompt_length:]])


class Good:
    """Scores by the id of the token."""

    def __init__(self, args, tokenizer):
        pass

    def answer(self, sample):
        return good(sample)

    def score(self, samples, top_k):
        calls.append(len(samples))
        return [self.answer(sample) for sample in samples]

    def act(self, turns, params):
        return [TeacherAction([2, 0], "0") for _ in turns]


class TwiceUnavailable(Good):
    def score(self, samples, top_k):
        if len(calls) < 2:
            calls.append(len(samples))
            raise ConnectionError("503 Service Unavailable")
        return super().score(samples, top_k)


class Unavailable(Good):
    def answer(self, sample):
        raise ConnectionError("503 Service Unavailable")


class Silent(Good):
    def answer(self, sample):
        threading.Event().wait()


class OnceLate(Good):
    def answer(self, sample):
        if len(calls) == 1:
            threading.Event().wait()
        return good(sample)


class Bad(Good):
    """Good for all samples but the second of a rollout."""

    def answer(self, sample):
        return self.spoil(good(sample).log_probs) if sample.index == 1 else good(sample)


class OneShort(Bad):
    def spoil(self, log_probs):
        return TeacherScore(log_probs[1:])


class NotANumber(Bad):
    def spoil(self, log_probs):
        return TeacherScore([float("nan"), *log_probs[1:]])


class Positive(Bad):
    def spoil(self, log_probs):
        return TeacherScore([0.5, *log_probs[1:]])


class NoScore(Bad):
    def spoil(self, log_probs):
        return None


class Lists(Bad):
    """Also tells two likely tokens, wrongly for the second sample of a rollout."""

    def answer(self, sample):
        told = good(sample).log_probs
        ids = [[1, 99 if sample.index == 1 else 2]] * len(told)
        return TeacherScore(told, ids, [[-1.0, -1.5]] * len(told))


class NoLists(Good):
    """Never gives likeliest tokens."""


def expert(observation):
    return "1"
'''


@pytest.fixture
def teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The module `fake_teachers` on the path; returns its list of calls."""
    folder = tmp_path / "teachers"
    folder.mkdir()
    (folder / "fake_teachers.py").write_text(TEACHERS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "fake_teachers", raising=False)
    import fake_teachers

    calls: list[int] = fake_teachers.calls
    return calls


@pytest.fixture
def opd(train: Any, teachers: list[int]) -> Callable[..., Any]:
    """`stacx train --algorithm opd` with a teacher of the module, asked again at once."""

    def run(teacher: str, *flags: str, **options: Any) -> Any:
        given = ["--teacher", f"fake_teachers:{teacher}", "--teacher-retry-wait", "0.01", "--num-rollout", "1"]
        return train("opd", *given, *flags, **options)

    return run


def test_a_teacher_of_ones_own(opd: Any, metrics: Any, tmp_path: Path) -> None:
    assert opd("Good").code == 0
    (line,) = metrics(tmp_path / "run")
    assert line["rollout/teacher_failed"] == line["rollout/teacher_retries"] == 0
    assert line["train/loss"] > 0
    assert math.isfinite(line["train/reverse_kl"])


def test_a_teacher_that_fails_twice_is_asked_a_third_time(
    opd: Any, teachers: list[int], metrics: Any, tmp_path: Path
) -> None:
    assert opd("Good", output="calm").code == 0
    teachers.clear()
    assert opd("TwiceUnavailable").code == 0
    assert teachers == [4, 4, 4]
    (calm,), (line,) = metrics(tmp_path / "calm"), metrics(tmp_path / "run")
    assert line == {**calm, "rollout/teacher_retries": 2.0}


def test_a_late_answer_is_thrown_away_and_the_question_asked_again(
    opd: Any, teachers: list[int], metrics: Any, tmp_path: Path
) -> None:
    assert opd("OnceLate", "--teacher-timeout", "0.1").code == 0
    assert teachers == [4, 4]
    assert metrics(tmp_path / "run")[0]["rollout/teacher_retries"] == 1


@pytest.mark.parametrize(
    ("teacher", "said"),
    [
        ("Unavailable", "ConnectionError: 503 Service Unavailable"),
        ("Silent", "OverTime: no answer within 0.1 seconds"),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "drop", "mask"])
def test_a_teacher_that_is_gone_ends_the_run(
    opd: Any, teachers: list[int], teacher: str, said: str, policy: str
) -> None:
    flags = ["--teacher-failure", policy, "--teacher-timeout", "0.1", "--teacher-retries", "2"]
    done = opd(teacher, *flags)
    assert done.code == 1
    assert "the teacher failed on 4 of 4 samples, first sample 0 (task '" in done.err
    assert f"{said}; asked 3 time(s)" in done.err
    assert ("--teacher-max-failed 0.5" in done.err) == (policy != "raise")
    assert teachers == [4, 4, 4]


BAD = {
    "OneShort": "log-probs for",
    "NotANumber": "its log-prob at response token 0 is nan",
    "Positive": "its log-prob at response token 0 is 0.5, which is above 0",
    "NoScore": "it answered with NoneType, not with a TeacherScore",
}


@pytest.mark.parametrize(("teacher", "said"), BAD.items())
def test_an_answer_that_is_no_score_ends_the_run(opd: Any, teachers: list[int], teacher: str, said: str) -> None:
    done = opd(teacher)
    assert done.code == 1
    assert "the teacher failed on 1 of 4 samples, first sample 1 (task '" in done.err
    assert said in done.err
    assert "--teacher-failure drop or mask goes on without such samples" in done.err
    assert teachers == [4, 1, 1, 1], "only the sample that failed is asked for again"


@pytest.mark.parametrize("teacher", BAD)
@pytest.mark.parametrize("policy", ["drop", "mask"])
def test_a_sample_without_a_score_teaches_nothing(
    opd: Any, metrics: Any, tmp_path: Path, teacher: str, policy: str
) -> None:
    """Three samples are left, so the loss is three quarters of their mean: the fourth adds 0 and counts."""
    assert opd("Good", output="whole").code == 0
    assert opd(teacher, "--teacher-failure", policy).code == 0
    (whole,), (line,) = metrics(tmp_path / "whole"), metrics(tmp_path / "run")
    assert line["rollout/teacher_failed"] == 1
    assert line["rollout/teacher_retries"] == 3
    assert line["rollout/removed"] == (1 if policy == "drop" else 0)
    assert line["rollout/response_tokens"] == whole["rollout/response_tokens"]
    assert line["rollout/loss_tokens"] < whole["rollout/loss_tokens"]
    assert 0 < line["train/loss"] < whole["train/loss"]


@pytest.mark.parametrize("policy", ["drop", "mask"])
def test_a_sample_with_wrong_lists_teaches_nothing(opd: Any, metrics: Any, tmp_path: Path, policy: str) -> None:
    flags = ["--distill-kl-mode", "topk", "--teacher-failure", policy]
    assert opd("Lists", *flags).code == 0
    (line,) = metrics(tmp_path / "run")
    assert line["rollout/teacher_failed"] == 1
    assert line["train/loss"] > 0


def test_the_share_that_may_fail(opd: Any, metrics: Any, tmp_path: Path) -> None:
    done = opd("NotANumber", "--teacher-failure", "drop", "--teacher-max-failed", "0.2")
    assert done.code == 1
    assert "that is above --teacher-max-failed 0.2" in done.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--teacher", "fake_teachers:expert"], "is a function, which can act but has no log-probs"),
        (["--teacher", "fake_teachers:nobody"], "has no 'nobody'"),
        (["--teacher", "fake_teachers:threading.Event"], "the class has no method score and no act"),
        (["--teacher", "modle"], "no teacher is called 'modle' (did you mean 'model'?)"),
        ([], "--teacher model needs --teacher-load"),
        (["--distill-topk", "3"], "--distill-topk has no effect on --distill-kl-mode k3_sample"),
        (
            ["--teacher", "fake_teachers:Good", "--distill-kl-mode", "topk", "--distill-missing", "query"],
            "has no method query; use floor or tail",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_model_is_loaded(
    train: Any, teachers: list[int], flags: list[str], said: str
) -> None:
    done = train("opd", "--num-rollout", "1", *flags)
    assert done.code == 2
    assert said in done.err


def test_a_teacher_without_lists_cannot_serve_topk(opd: Any) -> None:
    done = opd("NoLists", "--distill-kl-mode", "topk", "--teacher-retries", "0")
    assert done.code == 1
    assert "it gave no likeliest tokens, but 32 were asked for" in done.err


@pytest.fixture
def other(checkpoint: Path, tmp_path: Path) -> Path:
    """A teacher: the tiny checkpoint with other weights."""
    folder = tmp_path / "other"
    shutil.copytree(checkpoint, folder)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


MODES = {
    "k3_sample": [],
    "k2": [],
    "k3_is": ["--num-steps-per-rollout", "2"],
    "topk": ["--distill-topk", "3"],
    "gkd": ["--distill-topk", "3", "--distill-jsd-beta", "0.9"],
}


@pytest.mark.parametrize(("mode", "flags"), MODES.items())
def test_every_mode_brings_the_student_closer(
    train: Any, metrics: Any, tmp_path: Path, other: Path, mode: str, flags: list[str]
) -> None:
    given = ["--distill-kl-mode", mode, *flags, "--teacher-load", other, "--num-rollout", "25"]
    given += ["--rollout-batch-size", "12", "--n-samples-per-prompt", "2", "--lr", "1e-2", "--check-loss-invariance"]
    done = train("opd", *given)
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    first, last = (sum(line["train/reverse_kl"] for line in part) / 5 for part in (lines[:5], lines[-5:]))
    assert last < 0.7 * first
    assert ("train/topk_missing_frac" in lines[0]) == (mode in ("topk", "gkd"))
    assert ("train/distill_clamp_frac" in lines[0]) == (mode in ("k3_sample", "k3_is"))


@pytest.mark.parametrize("mode", ["k3_sample", "k2", "k3_is", "topk", "gkd"])
@pytest.mark.parametrize("missing", ["floor", "query"])
def test_a_teacher_that_is_the_student_teaches_nothing(
    train: Any, metrics: Any, tmp_path: Path, checkpoint: Path, mode: str, missing: str
) -> None:
    """At every position both say the same, so a shift by one token would show."""
    flags = ["--distill-kl-mode", mode, "--teacher-load", checkpoint, "--num-rollout", "1"]
    if mode in ("topk", "gkd"):
        flags += ["--distill-missing", missing, "--distill-topk", "3"]
    assert train("opd", *flags).code == 0
    (line,) = metrics(tmp_path / "run")
    assert line["train/loss"] == pytest.approx(0, abs=1e-6)
    assert line["train/reverse_kl"] == pytest.approx(0, abs=1e-5)
    assert line["train/grad_norm"] == pytest.approx(0, abs=1e-4)


def test_another_tokenizer_is_refused_naming_the_first_id_that_differs(
    train: Any, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(checkpoint, folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"5"', '"x"'))
    done = train("opd", "--teacher-load", folder, "--num-rollout", "1")
    assert done.code == 2
    assert "has another tokenizer than the policy: id 7 is 'x' there and '5' here" in done.err


def test_the_run_resumes_where_it_stopped(train: Any, metrics: Any, tmp_path: Path, other: Path) -> None:
    flags = ["--teacher-load", other, "--distill-kl-mode", "topk"]
    assert train("opd", *flags, "--num-rollout", "4", output="whole").code == 0
    assert train("opd", *flags, "--num-rollout", "2", output="parts").code == 0
    assert train("opd", *flags, "--num-rollout", "4", "--resume", output="parts").code == 0
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_a_teacher_of_another_precision_is_stopped_by_the_parity_probe(
    train: Any, checkpoint: Path, tmp_path: Path
) -> None:
    flags = ["--teacher-load", checkpoint, "--teacher-dtype", "bf16", "--num-rollout", "1"]
    done = train("opd", *flags, "--parity-probe-limit", "1e-5")
    assert done.code == 1
    assert "trainer and teacher differ by" in done.err
    assert "above --parity-probe-limit 1e-05" in done.err
    assert train("opd", *flags, "--parity-probe-limit", "0", output="unasked").code == 0


def test_rewards_are_measured_beside_the_divergence(opd: Any, metrics: Any, tmp_path: Path) -> None:
    assert opd("Good", "--rm-type", "exact").code == 0
    assert 0 <= metrics(tmp_path / "run")[0]["rollout/reward_mean"] <= 1


def test_what_a_run_stores(train: Any, other: Path, tmp_path: Path) -> None:
    assert train("opd", "--teacher-load", other, "--num-rollout", "1").code == 0
    state = json.loads((tmp_path / "run" / "checkpoints" / "latest" / "trainer.json").read_text())
    assert state["roll_in"]["position"] == 4


@pytest.mark.parametrize("mode", ["k3_sample", "topk"])
def test_a_teacher_scores_episodes(
    stacx: Any, games: Path, checkpoint: Path, metrics: Any, tmp_path: Path, mode: str
) -> None:
    """The student's own weights as teacher: nothing to learn at any token of any turn."""
    flags = ["--algorithm", "opd", "--distill-kl-mode", mode, "--environment", "games:Digits", "--num-rollout", "1"]
    files = ["--hf-checkpoint", checkpoint, "--teacher-load", checkpoint, "--output-dir", tmp_path / "run"]
    done = stacx("train", *flags, *files, "--rollout-max-response-len", "4", "--rollout-batch-size", "4")
    assert done.code == 0, done.err
    (line,) = metrics(tmp_path / "run")
    assert line["rollout/environment_tokens"] > 0
    assert line["train/loss"] == pytest.approx(0, abs=1e-5)
    assert line["train/reverse_kl"] == pytest.approx(0, abs=1e-5)
