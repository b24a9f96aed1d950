"""Equal prompts are computed once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from stacx_core.backends.attention import IMPLEMENTATION, PackedLayout
from stacx_core.backends.model import forward
from stacx_core.backends.shared_prompts import share_prompts

CPU = torch.device("cpu")
SAMPLES = [([5, 6], [7, 8, 9]), ([5, 6], [1]), ([3], [4]), ([5, 6], [7, 2]), ([5], [6, 7])]


def packed(samples: list[tuple[list[int], list[int]]]) -> tuple[list[int], list[int], list[int]]:
    tokens = [token for prompt, response in samples for token in prompt + response]
    return tokens, [len(p) + len(r) for p, r in samples], [len(r) for _, r in samples]


def test_the_second_of_two_equal_prompts_is_left_out() -> None:
    kept, places = share_prompts(*packed([([5, 6], [7]), ([5, 6], [8, 9])]))
    assert kept.tolist() == [0, 1, 2, 5, 6]
    assert places.tolist() == [0, 1, 2, 0, 1, 3, 4]


def test_a_prompt_that_begins_like_another_is_kept() -> None:
    kept, places = share_prompts(*packed([([5, 6], [7]), ([5], [6, 7])]))
    assert kept.tolist() == places.tolist() == [0, 1, 2, 3, 4, 5]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=3)
responses = st.lists(st.integers(0, 1), max_size=3)


@given(st.lists(st.tuples(prompts, responses), min_size=1, max_size=8))
def test_every_token_is_stood_for_by_an_equal_one(samples: list[tuple[list[int], list[int]]]) -> None:
    tokens, total_lengths, response_lengths = packed(samples)
    kept, places = share_prompts(tokens, total_lengths, response_lengths)
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert [tokens[kept[place]] for place in places] == tokens
    distinct = {tuple(prompt) for prompt, _ in samples}
    assert len(kept) == sum(map(len, distinct)) + sum(response_lengths)


@pytest.fixture(scope="module")
def model() -> Any:
    """GPT-2, which computes norms and positions in the model's own precision."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11, n_positions=8, n_embd=16, n_layer=2, n_head=4, attn_implementation=IMPLEMENTATION
    )
    return GPT2LMHeadModel(config).double().eval()


def run(
    model: Any, samples: list[tuple[list[int], list[int]]], shared: bool
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of all tokens, and the gradient of a sum of them with unequal weights."""
    ids, total_lengths, response_lengths = packed(samples)
    tokens = torch.tensor(ids)[None]
    positions = torch.cat([torch.arange(n) for n in total_lengths])[None]
    model.zero_grad()
    if shared:
        kept, places = share_prompts(ids, total_lengths, response_lengths)
        layout = PackedLayout(total_lengths, CPU, places)
        logits = forward(model, tokens[:, kept], positions[:, kept], layout, places)[0]
    else:
        logits = forward(model, tokens, positions, PackedLayout(total_lengths, CPU))[0]
    weights = torch.arange(logits.numel(), dtype=torch.float64).reshape(logits.shape).cos()
    (logits * weights).sum().backward()
    return logits.detach(), [p.grad for p in model.parameters()]


@settings(deadline=None, max_examples=10)
@given(order=st.permutations(SAMPLES), count=st.integers(2, 5))
def test_logits_and_gradients_are_those_of_separate_prompts(model: Any, order: Any, count: int) -> None:
    logits, gradients = run(model, order[:count], shared=True)
    expected, expected_gradients = run(model, order[:count], shared=False)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-12)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-12)


def test_what_is_computed_can_be_rounded_up(model: Any) -> None:
    """Seven tokens of which five are distinct, made eight by the first one; the outputs that are read stay the same."""
    samples = [([5, 6], [7]), ([5, 6], [8, 9])]
    ids, total_lengths, response_lengths = packed(samples)
    kept, places = share_prompts(ids, total_lengths, response_lengths, multiple=4)
    assert kept.tolist() == [0, 1, 2, 5, 6, 0, 0, 0]
    positions = torch.cat([torch.arange(n) for n in total_lengths])[None]
    layout = PackedLayout(total_lengths, CPU, places, len(kept))
    rounded = forward(model, torch.tensor(ids)[None, kept], positions[:, kept], layout, places)[0]
    assert float((rounded - run(model, samples, shared=True)[0]).abs().max()) <= 1e-12
