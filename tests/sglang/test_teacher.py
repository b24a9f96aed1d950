"""A teacher on a real server, against a plain forward of its model."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from stacx_core import Args, ConfigError, Sample, SamplingParams, TeacherTurn
from stacx_core.backends.model import load_model, load_tokenizer
from stacx_core.rollout.engine import GenerationRequest
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.sglang.pool import ServerPool
from stacx_core.rollout.sglang.scorer import ServerScorer, gathered
from stacx_core.rollout.sglang.server import ServerRefused, SGLangServer
from stacx_core.rollout.sglang.teacher import SGLangTeacher
from stacx_core.rollout.teachers.guarded import GuardedTeacher
from stacx_core.rollout.teachers.loading import load_teacher

VOCABULARY, PADDED = 97, 100


@pytest.fixture
def args(
    large: Path, llama: Path, sglang_server: Callable[..., Any], host_args: Callable[..., Args]
) -> Callable[..., Args]:
    def build(**given: Any) -> Args:
        own = {"hf_checkpoint": str(llama), "teacher": "sglang", "teacher_url": sglang_server(large).url}
        return host_args(**{**own, "teacher_retry_wait": 0.01, "rollout_temperature": 1.0, **given})

    return build


@pytest.fixture
def teacher(args: Callable[..., Args], llama: Path) -> SGLangTeacher:
    return SGLangTeacher(args(), load_tokenizer(str(llama)))


def samples(vocabulary: int, count: int = 12) -> list[Sample]:
    """Prompts and responses of many lengths, with the last id of the vocabulary first, last and in between."""
    source = random.Random(0)
    found = []
    for index in range(count):
        ids = [source.randrange(vocabulary) for _ in range(source.randint(3, 60))]
        response = source.randint(1, len(ids) - 1)
        ids[-1] = ids[len(ids) // 2] = ids[-response] = vocabulary - 1
        found.append(Sample(index=index, tokens=ids, response_length=response))
    return found


def expected(folder: Path, sample: Sample) -> Tensor:
    """``[R, V]`` by a plain forward."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([sample.tokens])).logits[0, sample.prompt_length - 1 : -1]
    return logits.float().log_softmax(-1)


@pytest.mark.parametrize("top_k", [0, 1, 5, VOCABULARY])
def test_scores_are_those_of_a_plain_forward(llama: Path, sglang_server: Callable[..., Any], top_k: int) -> None:
    """Of every token, the last id of the vocabulary included, which the server echoes as another one."""
    pool = ServerPool([SGLangServer(sglang_server(llama).url)])
    scorer = ServerScorer(pool, VOCABULARY)
    given = samples(VOCABULARY)
    for sample, score in zip(given, pool.run(gathered(scorer.score(s, top_k, 1.0) for s in given)), strict=True):
        rows = expected(llama, sample)
        own = rows.gather(-1, torch.tensor(sample.tokens[sample.prompt_length :])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(score.log_probs), own, atol=1e-4, rtol=0)
        if not top_k:
            assert score.topk_ids is None
            continue
        told = torch.tensor(score.topk_log_probs)
        assert told.shape == (sample.response_length, top_k)
        torch.testing.assert_close(told, rows.topk(top_k, dim=-1).values, atol=1e-4, rtol=0)
        torch.testing.assert_close(told, rows.gather(-1, torch.tensor(score.topk_ids)), atol=1e-4, rtol=0)
    if top_k == VOCABULARY:
        assert all(sorted(row) == list(range(VOCABULARY)) for row in score.topk_ids or [])


@pytest.mark.parametrize("top_k", [4, VOCABULARY])
def test_a_larger_teacher_tells_only_ids_that_the_policy_has(teacher: SGLangTeacher, large: Path, top_k: int) -> None:
    given = samples(VOCABULARY)
    for sample, score in zip(given, teacher.score(given, top_k), strict=True):
        rows = expected(large, sample)
        own = rows.gather(-1, torch.tensor(sample.tokens[sample.prompt_length :])[:, None])[:, 0]
        assert not isinstance(score, Exception)
        torch.testing.assert_close(torch.tensor(score.log_probs), own, atol=1e-4, rtol=0)
        best = rows[:, :VOCABULARY].topk(top_k, dim=-1)
        torch.testing.assert_close(torch.tensor(score.topk_log_probs), best.values, atol=1e-4, rtol=0)


def test_the_students_ids_are_queried_position_by_position(teacher: SGLangTeacher, large: Path) -> None:
    source = random.Random(1)
    given = samples(VOCABULARY)
    asked = [
        [[source.randrange(VOCABULARY), VOCABULARY - 1, 0] for _ in range(sample.response_length)] for sample in given
    ]
    for sample, ids, answer in zip(given, asked, teacher.query(given, asked), strict=True):
        rows = expected(large, sample).gather(-1, torch.tensor(ids))
        torch.testing.assert_close(torch.tensor(answer), rows, atol=1e-4, rtol=0)


def test_it_acts_as_its_model_would(teacher: SGLangTeacher, large: Path) -> None:
    turns = [TeacherTurn(sample.tokens[: sample.prompt_length], "", 0) for sample in samples(VOCABULARY)]
    greedy = SamplingParams(12, temperature=0)
    local = LocalEngine(load_model(str(large), torch.float32, torch.device("cpu")), [0], 16)
    others = local.generate([GenerationRequest(turn.context, [0]) for turn in turns], greedy)
    for action, (other,) in zip(teacher.act(turns, greedy), others, strict=True):
        assert not isinstance(action, Exception)
        assert action.ids == other.ids


def test_what_would_kill_the_server_is_not_sent(teacher: SGLangTeacher) -> None:
    with pytest.raises(ConfigError, match="the 98 likeliest of 97 token ids were asked for; ask for at most 97"):
        teacher.score(samples(VOCABULARY), VOCABULARY + 1)
    with pytest.raises(ConfigError, match="sample 4: the token id 100 was not sent; the server's model has 0 to 99"):
        teacher.score([Sample(index=4, tokens=[5, PADDED], response_length=1)], 0)
    assert len(teacher.score(samples(VOCABULARY), 1)) == 12


def test_another_temperature_is_refused_at_the_start(args: Callable[..., Args], llama: Path) -> None:
    """The server was measured to score at 1 only."""
    with pytest.raises(ConfigError, match=r"at temperature 1 only, and the run is at 0\.7: use --rollout-temperature"):
        load_teacher(args(rollout_temperature=0.7), load_tokenizer(str(llama)), scores=True)


def test_at_another_temperature_it_acts(args: Callable[..., Args], llama: Path) -> None:
    teacher = load_teacher(args(rollout_temperature=0.7), load_tokenizer(str(llama)), scores=False)
    (action,) = teacher.act([TeacherTurn([2, 3, 4], "", 7)], SamplingParams(4, temperature=0.7))
    assert action is not None
    assert 1 <= len(action.ids) <= 4


def test_a_sample_beyond_the_servers_context_is_refused_by_name(args: Callable[..., Args], llama: Path) -> None:
    """A server takes seven tokens fewer than its context of 256 has."""
    teacher = load_teacher(args(), load_tokenizer(str(llama)), scores=True)
    assert isinstance(teacher, GuardedTeacher)
    with pytest.raises(ServerRefused, match=r"http://127\.0\.0\.1:\d+/generate answered 400: .*exceeds"):
        teacher.label([Sample(index=0, tokens=[5] * 250, response_length=3)], 0)
    longest = Sample(index=0, tokens=[5] * 249, response_length=3)
    teacher.label([longest], 2)
    assert longest.teacher_topk_ids is not None
