"""Chunked log-probabilities: worked values, exact gradients, packing, masks, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from stacx_core.objectives import (
    make_reducer,
    response_rows,
    response_token_log_probs,
    sum_of_sample_mean,
    token_log_probs,
)


def dense(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_softmax = (logits / temperature).log_softmax(-1)
    log_probs = log_softmax.gather(-1, targets[:, None]).squeeze(-1)
    return log_probs, torch.special.entr(log_softmax.exp()).sum(-1)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.947537), (0.7, 0.702028)])
def test_entropy_of_four_logits(temperature: float, expected: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    _, entropy = token_log_probs(logits, torch.tensor([1]), temperature, with_entropy=True)
    assert entropy is not None
    assert entropy.item() == pytest.approx(expected, abs=2e-6)


def test_log_prob_of_four_logits() -> None:
    log_probs, entropy = token_log_probs(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([1]))
    assert log_probs.item() == pytest.approx(-1.44019, abs=2e-6)
    assert entropy is None


def test_temperature_divides_value_and_gradient() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    log_probs, _ = token_log_probs(logits, torch.tensor([0]), temperature=0.5)
    log_probs.sum().backward()
    assert log_probs.item() == pytest.approx(-0.142932, abs=2e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([0.266373, -0.234621, -0.031752], abs=2e-6)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 2, 100, None])
@pytest.mark.parametrize("rows", [None, [4, 0, 2]], ids=["all", "some"])
def test_gradients_match_finite_differences(with_entropy: bool, chunk_size: int | None, rows: list[int] | None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 3, 1, 1, 2])[: 5 if rows is None else 3]
    index = None if rows is None else torch.tensor(rows)

    def run(x: Tensor) -> Any:
        log_probs, entropy = token_log_probs(x, targets, 0.7, chunk_size, with_entropy, index)
        return log_probs if entropy is None else (log_probs, entropy)

    assert torch.autograd.gradcheck(run, (logits,))


def test_entropy_alone_has_its_gradient() -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(3, dtype=torch.int64)

    def entropy_of(x: Tensor) -> Any:
        return token_log_probs(x, targets, 1.3, 2, with_entropy=True)[1]

    assert torch.autograd.gradcheck(entropy_of, (logits,))


def test_a_row_used_twice_gets_both_gradients() -> None:
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    rows, targets = torch.tensor([1, 1, 1]), torch.tensor([0, 2, 0])
    assert torch.autograd.gradcheck(lambda x: token_log_probs(x, targets, 1.0, 2, False, rows)[0], (logits,))


def test_detached_entropy_leaves_the_gradient_of_the_log_probs() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    targets = torch.tensor([0, 1, 4])
    log_probs, entropy = token_log_probs(logits, targets, with_entropy=True)
    assert entropy is not None
    (with_metric,) = torch.autograd.grad(log_probs.sum() + 0 * entropy.detach().sum(), logits)
    (alone,) = torch.autograd.grad(token_log_probs(logits, targets)[0].sum(), logits)
    assert torch.equal(with_metric, alone)


@settings(deadline=None)
@given(
    count=st.integers(0, 9),
    chunk_size=st.none() | st.integers(1, 10),
    temperature=st.floats(0.1, 3.0),
    seed=st.integers(0, 10**6),
)
def test_chunks_give_the_dense_result(count: int, chunk_size: int | None, temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(count, 6, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    targets = torch.randint(6, (count,), generator=generator)
    weights = torch.randn(2, count, generator=generator, dtype=torch.float64)
    chunked = token_log_probs(logits, targets, temperature, chunk_size, with_entropy=True)
    gradients = []
    for log_probs, entropy in (chunked, dense(logits, targets, temperature)):
        assert entropy is not None
        loss = (weights[0] * log_probs + weights[1] * entropy).sum()
        gradients.append(torch.autograd.grad(loss, logits)[0])
    torch.testing.assert_close(chunked, dense(logits, targets, temperature), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-10)


def test_a_banned_token_counts_zero() -> None:
    logits = torch.tensor([[1.0, 0.0, float("-inf")]], requires_grad=True)
    log_probs, entropy = token_log_probs(logits, torch.tensor([0]), with_entropy=True)
    assert entropy is not None
    (log_probs + entropy).sum().backward()
    two_logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    expected = dense(two_logits, torch.tensor([0]), 1.0)
    (expected[0] + expected[1]).sum().backward()
    torch.testing.assert_close((log_probs, entropy), expected)
    assert logits.grad is not None
    assert two_logits.grad is not None
    torch.testing.assert_close(logits.grad[:, :2], two_logits.grad)
    assert logits.grad[0, 2].item() == 0.0


def test_bf16_logits_are_computed_in_fp32() -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(8, 50)).bfloat16().requires_grad_()
    targets = torch.arange(8)
    log_probs, entropy = token_log_probs(logits, targets, 0.8, 3, with_entropy=True)
    assert entropy is not None
    log_probs.sum().backward()
    exact = dense(logits.detach().double(), targets, 0.8)
    assert log_probs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), exact[1], rtol=1e-5, atol=1e-5)
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_large_logits_do_not_overflow() -> None:
    log_probs, entropy = token_log_probs(torch.tensor([[1e4, 0.0]]), torch.tensor([1]), with_entropy=True)
    assert entropy is not None
    assert (log_probs.item(), entropy.item()) == (-1e4, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: token_log_probs(x, torch.zeros(3, dtype=torch.int64), temperature=0.0), "positive, got 0"),
        (lambda x: token_log_probs(x, torch.zeros(2, dtype=torch.int64)), "2 targets for 3 rows"),
        (lambda x: token_log_probs(x[None], torch.zeros(3, dtype=torch.int64)), r"\[T, V\]"),
    ],
)
def test_unusable_arguments_are_refused(call: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(3, 4))


def logits_with_log_probs(log_probs: list[float], targets: list[int], vocabulary: int = 7) -> Tensor:
    """Logits [N, V] whose softmax gives exactly the wanted probability to each target."""
    rows = torch.zeros(len(targets), vocabulary, dtype=torch.float64)
    for row, (log_prob, target) in enumerate(zip(log_probs, targets, strict=True)):
        probability = torch.tensor(log_prob, dtype=torch.float64).exp()
        rows[row] = ((1 - probability) / (vocabulary - 1)).log()
        rows[row, target] = log_prob
    return rows


def test_every_answer_token_is_trained_the_first_and_the_last_too() -> None:
    """One prompt token and four answer tokens: the logits that predict them are rows 0 to 3."""
    answer = [1, 2, 3, 6]
    logits = logits_with_log_probs([-0.1, -0.2, -0.4, -0.8, -3.0], [*answer, 0])
    tokens = torch.tensor([[5, *answer]])
    log_probs, _ = response_token_log_probs(logits, tokens, [5], [4], [torch.ones(4)])
    assert log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.4, -0.8], abs=1e-9)
    assert sum_of_sample_mean(-log_probs, [4], [torch.ones(4)]).item() == pytest.approx(0.375, abs=1e-9)


def test_cross_entropy_of_two_packed_samples() -> None:
    """Two samples of three and four answer tokens behind one and two prompt tokens; one token is masked."""
    wanted = [-0.5, -1.2, -0.3, -0.9, -2.0, -0.7, -1.1]
    tokens = torch.tensor([0, 1, 2, 3, 4, 5, 6, 1, 2, 3])
    logits = torch.zeros(10, 7, dtype=torch.float64)
    rows = torch.tensor([0, 1, 2, 5, 6, 7, 8])
    logits[rows] = logits_with_log_probs(wanted, tokens[rows + 1].tolist())
    masks = [torch.tensor([1, 1, 1]), torch.tensor([1, 0, 1, 1])]
    log_probs, _ = response_token_log_probs(logits, tokens, [4, 6], [3, 4], masks)
    assert log_probs.tolist() == pytest.approx([-0.5, -1.2, -0.3, -0.9, 0.0, -0.7, -1.1], abs=1e-9)
    loss = make_reducer("sample_mean", [3, 4], masks)(-log_probs)
    assert loss.item() == pytest.approx(1.566667, abs=2e-6)


def test_no_row_predicts_across_a_packing_boundary() -> None:
    """[1, 2, 3] packed with [4, 5]: three targets, and the row of token 3 predicts nothing."""
    assert response_rows([3, 2], [2, 1]).tolist() == [0, 1, 3]


def test_rows_of_empty_and_partial_responses() -> None:
    assert response_rows([3, 4, 2], [0, 2, 1]).tolist() == [4, 5, 7]
    assert response_rows([], []).tolist() == []


@pytest.mark.parametrize("response", [3, 4, -1])
def test_a_response_without_a_token_before_it_is_refused(response: int) -> None:
    with pytest.raises(ValueError, match=f"sample 1: response length {response} of 3 tokens"):
        response_rows([2, 3], [1, response])


def test_packed_equals_one_sample_at_a_time() -> None:
    torch.manual_seed(0)
    totals, responses = [5, 3, 6], [2, 2, 4]
    masks = [torch.tensor([1, 1]), torch.tensor([0, 1]), torch.tensor([1, 0, 1, 1])]
    tokens = torch.randint(8, (14 + 2,))
    logits = torch.randn(14 + 2, 8, dtype=torch.float64)
    packed, entropy = response_token_log_probs(
        logits, tokens, totals, responses, masks, with_entropy=True, chunk_size=2
    )
    assert entropy is not None
    start, singles = 0, []
    for total, response, mask in zip(totals, responses, masks, strict=True):
        part = slice(start, start + total)
        singles.append(response_token_log_probs(logits[part], tokens[part], [total], [response], [mask])[0])
        start += total
    torch.testing.assert_close(packed, torch.cat(singles), rtol=0, atol=0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
def test_rows_of_masked_positions_are_never_read(poison: float) -> None:
    """Prompt rows, masked response rows and padding may hold anything: value and gradient stay exactly 0."""
    torch.manual_seed(0)
    tokens = torch.tensor([1, 2, 3, 4, 0, 0])
    clean = torch.randn(6, 5)
    dirty = clean.clone()
    dirty[[0, 2, 3, 4, 5]] = poison
    results, gradients = [], []
    for logits in (clean.requires_grad_(), dirty.requires_grad_()):
        log_probs, entropy = response_token_log_probs(
            logits, tokens, [4], [2], [torch.tensor([1, 0])], with_entropy=True
        )
        assert entropy is not None
        results.append((log_probs.tolist(), entropy.tolist()))
        gradients.append(torch.autograd.grad((log_probs + entropy).sum(), logits)[0])
    assert results[0] == results[1]
    assert (results[0][0][1], results[0][1][1]) == (0.0, 0.0)
    assert torch.equal(gradients[0], gradients[1])
    assert gradients[1].abs().sum(-1).nonzero().squeeze(-1).tolist() == [1]


@pytest.mark.parametrize(("responses", "masks"), [([], []), ([0], [torch.zeros(0)]), ([2], [torch.zeros(2)])])
def test_nothing_to_train_keeps_the_graph_and_gives_a_zero_gradient(responses: list[int], masks: list[Tensor]) -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    tokens = torch.zeros(4, dtype=torch.int64)
    totals = [4] * len(responses)
    log_probs, _ = response_token_log_probs(logits, tokens, totals, responses, masks)
    make_reducer("sample_mean", responses, masks)(log_probs).backward()
    assert log_probs.tolist() == [0.0] * sum(responses)
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("totals", "responses", "mask", "message"),
    [
        ([5], [2], torch.ones(2), "samples of 5 tokens in total"),
        ([4], [2], torch.ones(3), r"loss_masks have lengths \[3\]"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    totals: list[int], responses: list[int], mask: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        response_token_log_probs(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), totals, responses, [mask])


class NewTensors(TorchDispatchMode):
    """Records the number of elements of every tensor with new storage that an operation creates."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.sizes.append(tensor.numel())
        return result


def test_the_full_logits_exist_once_in_forward_and_their_gradient_once_in_backward() -> None:
    rows, vocabulary, chunk = 256, 500, 16
    logits = torch.randn(rows, vocabulary, requires_grad=True)
    tokens = torch.randint(vocabulary, (rows,))
    arguments = (logits, tokens, [rows], [rows - 1], [torch.ones(rows - 1)], 0.9, chunk, True)
    with NewTensors() as forward:
        log_probs, entropy = response_token_log_probs(*arguments)
        assert entropy is not None
        loss = (log_probs + entropy).sum()
    assert max(forward.sizes) <= chunk * vocabulary
    with NewTensors() as backward:
        loss.backward()
    full = [size for size in backward.sizes if size > chunk * vocabulary]
    assert full == [rows * vocabulary]


def test_several_targets_of_a_row() -> None:
    """Like one target at a time, repeated ids included; no target at all is an empty result."""
    torch.manual_seed(0)
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    targets, rows = torch.tensor([[0, 3, 3], [1, 4, 2]]), torch.tensor([2, 0])

    def chosen(x: Tensor) -> Tensor:
        return token_log_probs(x, targets, 0.7, chunk_size=1, rows=rows)[0]

    expected = (logits[rows] / 0.7).log_softmax(-1).gather(-1, targets)
    torch.testing.assert_close(chosen(logits), expected)
    assert torch.autograd.gradcheck(chosen, (logits,))
    assert token_log_probs(logits, targets[:0], rows=rows[:0])[0].shape == (0, 3)
    assert token_log_probs(logits, targets[:0, 0], rows=rows[:0])[0].shape == (0,)
