"""A local teacher against plain Transformers, a scripted expert, and what is wrong with an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stacx_core import (
    Args,
    BatchError,
    ConfigError,
    Sample,
    SamplingParams,
    TeacherAction,
    TeacherError,
    TeacherScore,
    TeacherTurn,
)
from stacx_core.backends.model import load_tokenizer
from stacx_core.data.batch import samples_to_batch, validate_batch
from stacx_core.rollout.teachers.answers import action_problem, score_problem
from stacx_core.rollout.teachers.guarded import GuardedTeacher
from stacx_core.rollout.teachers.loading import load_teacher
from stacx_core.rollout.teachers.local import LocalTeacher
from stacx_core.rollout.teachers.scripted import ScriptedTeacher

SAMPLES = [
    Sample(index=0, tokens=[3, 12, 4, 13, 7, 0], response_length=2),
    Sample(index=1, tokens=[5, 6, 7, 8, 9, 10, 11], response_length=6),
    Sample(index=2, tokens=[3, 3], response_length=1),
]


@pytest.fixture
def args(checkpoint: Path, host_args: Callable[..., Args]) -> Callable[..., Args]:
    """Arguments with the tiny checkpoint as policy and as teacher."""

    def build(**given: Any) -> Args:
        own = {"hf_checkpoint": str(checkpoint), "teacher_load": str(checkpoint), "teacher": "model"}
        return host_args(**{**own, "teacher_retry_wait": 0.0, "dtype": "fp32", **given})

    return build


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("max_tokens", [4096, 8])
def test_a_local_teacher_says_what_a_plain_forward_says(
    args: Any, checkpoint: Path, temperature: float, max_tokens: int
) -> None:
    """At every response position, likeliest tokens included, however the samples are packed."""
    given = args(rollout_temperature=temperature, max_tokens_per_gpu=max_tokens)
    teacher = LocalTeacher(given, load_tokenizer(str(checkpoint)))
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    asked = [[[1, 5, 0]] * sample.response_length for sample in SAMPLES]
    answers = teacher.query(SAMPLES, asked)
    for sample, score, answer in zip(SAMPLES, teacher.score(SAMPLES, 4), answers, strict=True):
        ids = torch.tensor([sample.tokens])
        with torch.no_grad():
            rows = (model(ids).logits[0, sample.prompt_length - 1 : -1] / temperature).log_softmax(-1)
        expected = rows.gather(-1, ids[0, sample.prompt_length :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(score.log_probs), expected, atol=1e-5, rtol=0)
        likeliest = rows.topk(4, dim=-1)
        assert score.topk_ids == likeliest.indices.tolist()
        torch.testing.assert_close(torch.tensor(score.topk_log_probs), likeliest.values, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.tensor(answer), rows[:, [1, 5, 0]], atol=1e-5, rtol=0)


def test_no_more_tokens_are_told_than_there_are(args: Any, checkpoint: Path) -> None:
    (score,) = LocalTeacher(args(), load_tokenizer(str(checkpoint))).score(SAMPLES[2:], 100)
    assert score.topk_ids is not None
    assert sorted(score.topk_ids[0]) == list(range(14))
    assert LocalTeacher(args(), load_tokenizer(str(checkpoint))).score(SAMPLES[2:], 0)[0].topk_ids is None


def test_a_sample_beyond_the_teachers_context_is_an_error(args: Any, checkpoint: Path) -> None:
    teacher = load_teacher(args(), load_tokenizer(str(checkpoint)), scores=True)
    with pytest.raises(TeacherError, match=r"sample 7 has 33 tokens; the teacher .* takes 32"):
        teacher.label([Sample(index=7, tokens=[3] * 33, response_length=1)], 0)


def test_a_local_teacher_acts_and_each_action_follows_from_its_own_seed(args: Any, checkpoint: Path) -> None:
    teacher = load_teacher(args(), load_tokenizer(str(checkpoint)), scores=False)
    turns = [TeacherTurn([3, 4, 5], "", seed) for seed in (1, 2, 1)]
    first, second, again = teacher.act(turns, SamplingParams(8))
    assert first == again
    assert first != second
    assert 1 <= len(first.ids) <= 8


def plus_one(observation: str) -> str:
    return str(int(observation) + 1)


def test_a_scripted_expert_acts_but_has_no_log_probs(checkpoint: Path) -> None:
    expert = ScriptedTeacher(plus_one, load_tokenizer(str(checkpoint)), "auto")
    (action,) = expert.act([TeacherTurn([], "41", 0)], SamplingParams(8))
    assert isinstance(action, TeacherAction)
    assert action.text == "42"
    assert action.ids == [6, 4, 0], "two digits and the end token"
    with pytest.raises(ConfigError, match="has no log-probs"):
        expert.score(SAMPLES, 0)


def test_a_state_that_an_expert_has_nothing_for_costs_no_other_its_action(checkpoint: Path) -> None:
    def partial(observation: str) -> object:
        return 3 if observation == "3" else plus_one(observation)

    expert = ScriptedTeacher(partial, load_tokenizer(str(checkpoint)), "auto")  # type: ignore[arg-type]
    turns = [TeacherTurn([], text, 0) for text in ("1", "x", "3", "4")]
    one, error, number, four = expert.act(turns, SamplingParams(8))
    assert [action.text for action in (one, four) if isinstance(action, TeacherAction)] == ["2", "5"]
    assert isinstance(error, ValueError)
    assert str(number) == "the scripted expert must return text, not int 3"


def test_a_model_does_not_act_beyond_its_context(checkpoint: Path, host_args: Any) -> None:
    teacher = LocalTeacher(
        host_args(teacher_load=str(checkpoint), hf_checkpoint=str(checkpoint), rollout_temperature=1.0),
        load_tokenizer(str(checkpoint)),
    )
    teacher.limit = 10
    with pytest.raises(TeacherError, match="needs room for 11 tokens"):
        teacher.act([TeacherTurn([3] * 8, "", 0)], SamplingParams(3))


class Flaky:
    """Fails as often as it is told, then scores or acts."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def _work(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("connection reset")

    def score(self, samples: Any, top_k: int) -> list[TeacherScore]:
        self._work()
        return [TeacherScore([-1.0] * sample.response_length) for sample in samples]

    def act(self, turns: Any, params: Any) -> Any:
        self._work()
        return [type("Action", (), {"ids": [99], "text": ""})() for _ in turns]


def test_a_guarded_teacher_is_a_teacher(args: Any) -> None:
    guarded = GuardedTeacher(Flaky(2), args(), timeout=5.0)
    assert [len(score.log_probs) for score in guarded.score(SAMPLES, 0)] == [2, 6, 1]
    assert guarded.take_metrics() == {"teacher_failed": 0.0, "teacher_retries": 2.0}
    assert guarded.take_metrics() == {"teacher_failed": 0.0, "teacher_retries": 0.0}
    with pytest.raises(TeacherError, match="the teacher failed on sample 0: OSError: connection reset"):
        GuardedTeacher(Flaky(9), args(), timeout=None).score(SAMPLES, 0)
    with pytest.raises(
        TeacherError, match="on 1 of 1 states, first state 0: its action has the token id 99; the policy has 0 to 13"
    ):
        GuardedTeacher(Flaky(0), args(), timeout=None).act([TeacherTurn([], "", 0)], SamplingParams(8))


class Quitter:
    """Ends the process, as it believes, or answers with what is no answer."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def act(self, turns: Any, params: Any) -> Any:
        if self.answer is None:
            raise SystemExit(0)
        return [self.answer for _ in turns]

    def score(self, samples: Any, top_k: int) -> Any:
        return [self.answer for _ in samples]


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_teacher_that_quits_has_failed(args: Any, timeout: float | None) -> None:
    with pytest.raises(TeacherError, match="SystemExit: 0"):
        GuardedTeacher(Quitter(), args(), timeout).act([TeacherTurn([], "", 0)], SamplingParams(8))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (TeacherScore(None), "its log-probs come as NoneType"),  # type: ignore[arg-type]
        (TeacherScore(-1.0), "its log-probs come as float"),  # type: ignore[arg-type]
        (TeacherScore([-1.0, -1.0], [1, 2], [[-1.0]] * 2), "it answered with TeacherScore that does not fit"),  # type: ignore[list-item]
    ],
)
def test_a_score_of_the_wrong_type_is_a_failure(args: Any, answer: TeacherScore, said: str) -> None:
    with pytest.raises(TeacherError, match=said):
        GuardedTeacher(Quitter(answer), args(), None).score(SAMPLES[:1], 2 if answer.topk_ids else 0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[1]", "without a token"),
        (TeacherAction([1.5], "x"), "has the token id 1.5"),  # type: ignore[list-item]
        (TeacherAction([1], None), "NoneType in the place of text"),  # type: ignore[arg-type]
    ],
)
def test_an_action_of_the_wrong_type_is_a_failure(args: Any, answer: Any, said: str) -> None:
    with pytest.raises(TeacherError, match=said):
        GuardedTeacher(Quitter(answer), args(), None).act([TeacherTurn([], "", 0)], SamplingParams(8))


def test_the_share_that_failed_is_judged_over_a_rollout(args: Any) -> None:
    """Three fail, then three are well: half of them, which is not above it; then three more in the next rollout."""
    guarded = GuardedTeacher(Quitter(), args(teacher_failure="drop", teacher_max_failed=0.5), None)
    turns = [TeacherTurn([], "", 0)] * 3
    assert guarded.act(turns, SamplingParams(8)) == [None] * 3
    guarded.teacher = Quitter(TeacherAction([1], "x"))
    assert len(guarded.act(turns, SamplingParams(8))) == 3
    assert guarded.take_metrics()["teacher_failed"] == 3
    guarded.teacher = Quitter()
    guarded.act(turns, SamplingParams(8))
    with pytest.raises(TeacherError, match=r"above --teacher-max-failed 0\.5"):
        guarded.take_metrics()


def test_waits_grow(args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    GuardedTeacher(Flaky(3), args(teacher_retry_wait=0.5), timeout=None).score(SAMPLES, 0)
    assert waits == [0.5, 1.0, 2.0]


def test_an_empty_response_is_not_asked_for(args: Any) -> None:
    samples = [Sample(index=0, tokens=[3], response_length=0), Sample(index=1, tokens=[3, 4], response_length=1)]
    guarded = GuardedTeacher(Flaky(0), args(), timeout=None)
    guarded.label(samples, 0)
    assert [sample.teacher_log_probs for sample in samples] == [None, [-1.0]]


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (TeacherScore([-1.0]), "gave 1 log-probs for 2"),
        (TeacherScore([-1.0, math.inf]), "at response token 1 is inf"),
        (TeacherScore([-1.0, 1e-5]), "is 1e-05, which is above 0"),
        (TeacherScore([-1.0, 1e-7]), "no likeliest tokens, but 2 were asked for"),
        (TeacherScore([-1.0, -2.0], [[1, 2]], [[-1.0, -1.0]] * 2), "likeliest tokens at 1 and their log-probs at 2"),
        (TeacherScore([-1.0, -2.0], [[1], [1, 2]], [[-1.0], [-1.0, -1.0]]), "lists of [1, 2] likeliest tokens"),
        (TeacherScore([-1.0, -2.0], [[1, 2, 3]] * 2, [[-1.0] * 3] * 2), "at most 2"),
        (
            TeacherScore([-1.0, -2.0], [[1, 14]] * 2, [[-1.0] * 2] * 2),
            "token id 14; the policy has ids from 0 to 13",
        ),
        (TeacherScore([-1.0, -2.0], [[1, 2]] * 2, [[-1.0, -math.inf]] * 2), "at response token 1 is -inf"),
        (TeacherScore([-1.0, -2.0], [[1, 2]] * 2, [[-1.0, -1.5]] * 2), ""),
    ],
)
def test_what_is_wrong_with_a_score(score: TeacherScore, said: str) -> None:
    problem = score_problem(score, SAMPLES[0], 2, 14)
    assert said in problem
    assert bool(said) == bool(problem)


def test_what_is_wrong_with_an_action() -> None:
    assert action_problem(None, 14) == "it gave an action without a token"


def labelled(**values: Any) -> Sample:
    return Sample(tokens=[3, 4, 5], response_length=2, **values)


def test_likeliest_tokens_in_a_batch() -> None:
    """A removed sample has the layout of the others; a value that is not finite is found."""
    told = {"teacher_topk_ids": [[1, 2], [3, 4]], "teacher_topk_log_probs": [[-1.0, -2.0], [-1.0, -2.0]]}
    samples = [labelled(teacher_log_probs=[-1.0, -1.0], **told), labelled(remove_sample=True)]
    batch, _ = samples_to_batch(samples, mask_truncated=False, reward_key=None)
    validate_batch(batch, ["teacher_topk_ids", "teacher_topk_log_probs"])
    assert batch["teacher_topk_ids"][0].tolist() == [[1, 2], [3, 4]]
    assert batch["teacher_topk_ids"][0].dtype == torch.int32
    assert batch["teacher_topk_log_probs"][1].shape == (2, 2)
    batch["teacher_topk_log_probs"][0][1, 0] = math.nan
    with pytest.raises(ArithmeticError, match="teacher_topk_log_probs is nan at position 1 of the response"):
        validate_batch(batch)
    ragged = {"teacher_topk_ids": [[1], [3, 4]], "teacher_topk_log_probs": [[-1.0], [-1.0, -2.0]]}
    with pytest.raises(BatchError, match=r"teacher_topk_ids has rows of \[1, 2\] entries"):
        samples_to_batch([labelled(**ragged)], mask_truncated=False, reward_key=None)


def test_the_response_stands_behind_the_teachers_prompt() -> None:
    batch, _ = samples_to_batch([labelled(teacher_prompt=[9, 8, 7])], mask_truncated=False, reward_key=None)
    assert batch["teacher_tokens"][0].tolist() == [9, 8, 7, 4, 5]
