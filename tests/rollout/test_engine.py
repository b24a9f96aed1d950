"""The embedded engine against a full forward pass of each finished sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import forward
from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.local import LocalEngine

END = 0
TEMPERATURE = 0.6


def full_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """``[L, V]`` by one forward pass of the whole sequence."""
    layout = PackedLayout([len(ids)], torch.device("cpu"))
    with torch.no_grad():
        return forward(model, torch.tensor([ids]), torch.arange(len(ids))[None], layout)[0]


def requests_of(prompts: Sequence[Sequence[int]], group: int = 3) -> list[GenerationRequest]:
    return [GenerationRequest(p, [100 * i + k for k in range(group)]) for i, p in enumerate(prompts)]


def generate(
    model: Any,
    requests: Sequence[GenerationRequest],
    *,
    running: int = 256,
    stops: Sequence[int] = (END,),
    **options: Any,
) -> list[list[Generation]]:
    params = SamplingParams(**{"max_new_tokens": 12, "temperature": TEMPERATURE, **options})
    return LocalEngine(model, stops, running).generate(requests, params)


def test_greedy_takes_the_likeliest_token_of_the_full_forward(model: Any, prompts: Any) -> None:
    for prompt, (answer,) in zip(prompts, generate(model, requests_of(prompts, 1), temperature=0), strict=True):
        logits = full_logits(model, [*prompt, *answer.ids])[len(prompt) - 1 : -1]
        assert answer.ids == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1)[range(len(answer.ids)), answer.ids]
        torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("truncation", [{}, {"top_k": 3}, {"top_p": 0.7}])
def test_log_probs_are_those_of_the_full_softmax_at_the_temperature(model: Any, prompts: Any, truncation: Any) -> None:
    for prompt, group in zip(prompts, generate(model, requests_of(prompts), **truncation), strict=True):
        for answer in group:
            logits = full_logits(model, [*prompt, *answer.ids])[len(prompt) - 1 : -1]
            expected = (logits / TEMPERATURE).log_softmax(-1)[range(len(answer.ids)), answer.ids]
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)


def tokens(answers: Sequence[Sequence[Generation]]) -> list[list[list[int]]]:
    return [[answer.ids for answer in group] for group in answers]


@pytest.mark.parametrize("running", [1, 2, 4, 7, 15])
def test_the_number_of_running_responses_changes_nothing(model: Any, prompts: Any, running: int) -> None:
    whole = generate(model, requests_of(prompts))
    parts = generate(model, requests_of(prompts), running=running)
    assert tokens(parts) == tokens(whole)
    for group, other in zip(whole, parts, strict=True):
        for answer, same in zip(group, other, strict=True):
            assert answer.log_probs == pytest.approx(same.log_probs, abs=1e-5)


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
@pytest.mark.parametrize("running", [4, 256])
def test_the_order_of_the_prompts_changes_nothing(model: Any, prompts: Any, order: list[int], running: int) -> None:
    requests = requests_of(prompts)
    shuffled = generate(model, [requests[i] for i in order], running=running)
    assert tokens(shuffled) == [tokens(generate(model, requests))[i] for i in order]


def test_a_group_may_be_asked_for_in_parts(model: Any, prompts: Any) -> None:
    requests = requests_of(prompts)
    parts = [GenerationRequest(r.prompt, [seed]) for r in requests for seed in r.seeds]
    assert [ids for (ids,) in tokens(generate(model, parts))] == [
        ids for group in tokens(generate(model, requests)) for ids in group
    ]


def test_a_response_follows_its_seed_alone(model: Any, prompts: Any) -> None:
    answers = tokens(generate(model, [GenerationRequest(prompts[0], [7, 8, 7, 9])]))[0]
    assert answers[0] == answers[2]
    assert len({tuple(ids) for ids in answers}) == 3


def test_a_stop_token_ends_a_response_and_is_kept_with_its_log_prob(model: Any, prompts: Any) -> None:
    answers = [a for group in generate(model, requests_of(prompts, 8), stops=[END, 5]) for a in group]
    stopped = [answer for answer in answers if answer.finish == "stop"]
    cut = [answer for answer in answers if answer.finish == "length"]
    assert stopped
    assert cut
    for answer in answers:
        assert len(answer.ids) == len(answer.log_probs)
        assert not {END, 5} & set(answer.ids[:-1])
        assert all(log_prob < 0 for log_prob in answer.log_probs)
    assert all(answer.ids[-1] in (END, 5) for answer in stopped)
    assert all(len(answer.ids) == 12 and answer.ids[-1] not in (END, 5) for answer in cut)


def test_the_shorter_of_two_limits_is_a_prefix(model: Any, prompts: Any) -> None:
    long, short = (generate(model, requests_of(prompts), max_new_tokens=n) for n in (12, 1))
    assert tokens(short) == [[ids[:1] for ids in group] for group in tokens(long)]


def test_generating_leaves_the_mode_of_the_model_alone(model: Any, prompts: Any) -> None:
    for mode in (True, False):
        model.train(mode)
        generate(model, requests_of(prompts))
        assert model.training is mode


def test_new_weights_are_used_at_once(model: Any, prompts: Any) -> None:
    """The engine keeps no cache from one call to the next."""
    engine = LocalEngine(model, [END], 256)
    greedy = SamplingParams(8, temperature=0)
    head = model.lm_head.weight
    before = engine.generate(requests_of(prompts, 1), greedy)
    with torch.no_grad():
        head.neg_()
    changed = engine.generate(requests_of(prompts, 1), greedy)
    with torch.no_grad():
        head.neg_()
    assert tokens(changed) != tokens(before)
    assert tokens(engine.generate(requests_of(prompts, 1), greedy)) == tokens(before)
