"""The next token: temperature, top-k and nucleus on small distributions."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.sampling import choose, uniforms

PROBABILITIES = [0.1, 0.4, 0.05, 0.3, 0.15]
LAST_BELOW_ONE = math.nextafter(1.0, 0.0)


def drawn(probabilities: list[float], **options: float) -> dict[int, float]:
    """The share of a fine grid of draws that gives each token."""
    draws = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    logits = torch.tensor(probabilities).log().expand(2000, -1)
    ids, _ = choose(logits, draws, SamplingParams(1, **options))  # type: ignore[arg-type]
    return {token: count / 2000 for token, count in sorted(Counter(ids.tolist()).items())}


def test_each_token_is_drawn_with_its_probability() -> None:
    assert drawn(PROBABILITIES) == pytest.approx(dict(enumerate(PROBABILITIES)), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 1}, {1: 1.0}),
        ({"top_k": 2}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_k": 9}, dict(enumerate(PROBABILITIES))),
        ({"top_p": 0.39}, {1: 1.0}),
        ({"top_p": 0.41}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.8}, {1: 8 / 17, 3: 6 / 17, 4: 3 / 17}),
        ({"top_k": 2, "top_p": 0.5}, {1: 1.0}),
        ({"temperature": 0.5}, {i: p * p / 0.285 for i, p in enumerate(PROBABILITIES)}),
    ],
)
def test_a_truncated_distribution(options: dict[str, float], expected: dict[int, float]) -> None:
    """At temperature 1/2 probabilities are squared: 0.01 + 0.16 + 0.0025 + 0.09 + 0.0225 = 0.285."""
    assert drawn(PROBABILITIES, **options) == pytest.approx(expected, abs=1e-3)


def test_top_k_keeps_k_of_equal_tokens() -> None:
    assert len(drawn([0.25] * 4, top_k=2)) == 2


def test_the_log_prob_is_of_the_full_softmax_at_the_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    for options in ({}, {"top_k": 1}, {"top_p": 0.5}):
        ids, log_probs = choose(logits, torch.zeros(1).double(), SamplingParams(1, 0.5, **options))
        assert ids.tolist() == [0]
        assert log_probs.item() == pytest.approx(-0.142932, abs=1e-6)
    assert choose(logits, torch.zeros(1).double(), SamplingParams(1, 0.0))[1].item() == pytest.approx(
        -0.407606, abs=1e-6
    )


@given(
    st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=1, max_size=8),
    st.floats(0, LAST_BELOW_ONE),
    st.integers(1, 9) | st.just(-1),
    st.floats(0.01, 1),
    st.floats(0.1, 3),
)
def test_a_drawn_token_is_always_one_that_was_kept(
    logits: list[float], draw: float, top_k: int, top_p: float, temperature: float
) -> None:
    logits[len(logits) // 2] = 0.0
    rows = torch.tensor([logits])
    ids, log_probs = choose(
        rows, torch.tensor([draw], dtype=torch.float64), SamplingParams(1, temperature, top_p, top_k)
    )
    probabilities = (rows[0] / temperature).softmax(-1)
    token = int(ids)
    assert probabilities[token] > 0
    assert log_probs.item() == pytest.approx(math.log(probabilities[token]), abs=1e-4)
    likelier = probabilities[probabilities > probabilities[token]]
    assert top_k == -1 or len(likelier) < top_k
    if top_k == -1:
        assert likelier.sum() <= top_p + 1e-5


def test_the_draws_of_a_row_depend_on_its_seed_alone() -> None:
    rows = uniforms([3, 4, 3], 5)
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(uniforms([4], 9)[0, :5], rows[1])
    assert torch.equal(uniforms([2**64 - 1], 2), uniforms([2**63 - 1], 2))
    assert bool(((rows >= 0) & (rows < 1)).all())
