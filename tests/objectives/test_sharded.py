"""Outputs that are cut over processes: worked values, the same results as of one tensor, and no use as one."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stacx_core.knobs import Args
from stacx_core.objectives import (
    ShardedOutput,
    kl_estimate,
    likeliest_ids,
    make_reducer,
    response_token_log_probs,
    token_log_probs,
    values_at,
)
from stacx_core.specialization import CausalDecoderSpecialization, ScalarHeadSpecialization

FOUR = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def cross_entropy(place: Any, logits: Tensor, target: int, padding: int = 0) -> dict[str, Any]:
    output = place.shard(logits.requires_grad_(), [1], padding)
    log_probs, entropy = token_log_probs(output, torch.tensor([target]), with_entropy=True)
    (-log_probs.sum()).backward()
    assert entropy is not None
    return {
        "loss": -log_probs.item(),
        "gradient": output.local.grad[0].tolist(),
        "entropy": entropy.item(),
        "likeliest": likeliest_ids(output, torch.tensor([0]), 9).tolist(),
    }


@pytest.mark.parametrize(
    ("target", "loss", "gradient"),
    [
        (0, 0.440190, [-0.356086, 0.236883, 0.087144, 0.032059]),
        (3, 3.440190, [0.643914, 0.236883, 0.087144, -0.967941]),
    ],
)
def test_both_shards_have_a_gradient_whoever_owns_the_target(
    two: Any, target: int, loss: float, gradient: list[float]
) -> None:
    first, second = two.run(cross_entropy, FOUR, target, tensor=2)
    assert first["loss"] == second["loss"] == pytest.approx(loss, abs=2e-6)
    assert [*first["gradient"], *second["gradient"]] == pytest.approx(gradient, abs=2e-6)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_padding_columns_count_nowhere(two: Any, padding: int) -> None:
    """Five equal logits over two processes leave one column of padding or more, up to all of the second's: ln 5."""
    first, second = two.run(cross_entropy, torch.ones(1, 5), 4, padding, tensor=2)
    for found in (first, second):
        assert found["loss"] == pytest.approx(1.609438, abs=2e-6)
        assert found["entropy"] == pytest.approx(1.609438, abs=2e-6)
        assert found["likeliest"] == [[0, 1, 2, 3, 4]]
    gradient = [*first["gradient"], *second["gradient"]]
    assert gradient == pytest.approx([0.2, 0.2, 0.2, 0.2, -0.8, *[0.0] * (1 + 2 * padding)], abs=2e-6)


def token_mean(place: Any, logits: Tensor, tokens: Tensor, count: int) -> tuple[float, Tensor]:
    """The loss of a sample of one prompt token and ``count`` trained ones, over the step's count of tokens."""
    output = place.shard(logits.requires_grad_(), [len(logits)])
    batch = {
        "tokens": tokens[None],
        "total_lengths": [len(tokens)],
        "response_lengths": [count],
        "loss_masks": [torch.ones(count, dtype=torch.int32)],
    }
    args = Args.of(rollout_temperature=1.0, log_probs_chunk_size=None)
    reducer = make_reducer("token_mean", [count], batch["loss_masks"])
    loss, _ = CausalDecoderSpecialization(args).compute_loss(output, batch, reducer)
    (loss / count).backward()
    assert logits.grad is not None
    return loss.item() / count, logits.grad


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"context": 2}])
@pytest.mark.parametrize("count", [12, 13])
def test_no_token_counts_twice_and_none_is_lost(two: Any, layout: dict[str, int], count: int) -> None:
    """Every token has loss 0.5, so the mean is 0.5, however many processes share or repeat the tokens."""
    tokens = torch.arange(count + 1) % 4
    logits = torch.zeros(count + 1, 4, dtype=torch.float64)
    probability = torch.tensor(-0.5, dtype=torch.float64).exp()
    logits[:-1] = ((1 - probability) / 3).log()
    logits[torch.arange(count), tokens[1:]] = -0.5
    expected = (logits.softmax(-1) - F.one_hot(tokens.roll(-1), 4)) / count
    expected[-1] = 0
    (first, gradient), (second, other) = two.run(token_mean, logits, tokens, count, **layout)
    assert first == second == pytest.approx(0.5, abs=1e-9)
    torch.testing.assert_close(gradient + other, expected)


def own_divergence(place: Any, logits: Tensor, tokens: Tensor, teacher: list[float]) -> tuple[list[float], list[float]]:
    output = place.shard(logits, [len(tokens)])
    log_probs, _ = response_token_log_probs(output, tokens, [len(tokens)], [len(teacher)], [torch.ones(len(teacher))])
    return log_probs.tolist(), kl_estimate(log_probs, torch.tensor(teacher), "low_var_kl").tolist()


def test_teacher_and_student_are_aligned_when_the_sequence_is_cut(two: Any) -> None:
    """Three prompt ids and two response ids; ids 1 to 4 have the log-probs -0.1 to -0.4."""
    tokens = torch.tensor([0, 1, 0, 1, 0])
    logits = torch.zeros(5, 2)
    for row, wanted in enumerate([-0.1, -0.2, -0.3, -0.4]):
        other = 1 - torch.tensor(wanted).exp()
        logits[row] = torch.where(torch.arange(2) == tokens[row + 1], torch.tensor(wanted), other.log())
    for log_probs, divergence in two.run(own_divergence, logits, tokens, [-0.3, -0.4], context=2):
        assert log_probs == pytest.approx([-0.3, -0.4], abs=1e-6)
        assert divergence == pytest.approx([0.0, 0.0], abs=1e-6)


Case = dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Packed samples with random logits, some banned, some equal; rows in any order and repeated."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    total, vocabulary = sum(lengths), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    logits = 3 * torch.randn(total, vocabulary, generator=generator, dtype=dtype)
    if draw(st.booleans()):
        logits = logits.round()
    banned = torch.rand(total, vocabulary, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    banned[torch.arange(total), torch.randint(vocabulary, (total,), generator=generator)] = False
    count, several = draw(st.integers(0, 8)), draw(st.sampled_from([None, 0, 3]))
    shape = (count,) if several is None else (count, several)
    return {
        "logits": logits.masked_fill(banned, -torch.inf),
        "lengths": lengths,
        "rows": torch.randint(total, (count,), generator=generator),
        "targets": torch.randint(vocabulary, shape, generator=generator),
        "temperature": draw(st.sampled_from([1.0, 0.4, 2.5])),
        "chunk_size": draw(st.sampled_from([None, 1, 3])),
        "weights": torch.randn(shape, generator=generator, dtype=dtype),
        "entropy_weights": torch.randn(count, generator=generator, dtype=dtype),
        "k": draw(st.integers(1, 10)),
        "padding": draw(st.integers(0, 2)),
    }


def results(output: Tensor | ShardedOutput, logits: Tensor, case: Case) -> dict[str, Tensor]:
    log_probs, entropy = token_log_probs(
        output, case["targets"], case["temperature"], case["chunk_size"], True, case["rows"]
    )
    assert entropy is not None
    finite = torch.where(torch.isfinite(log_probs), log_probs, 0.0)
    loss = (case["weights"] * finite).sum() + (case["entropy_weights"] * entropy).sum()
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    return {
        "log_probs": log_probs.detach(),
        "entropy": entropy.detach(),
        "gradient": gradient,
        "likeliest": likeliest_ids(output, case["rows"], case["k"], case["chunk_size"]),
    }


def sharded_results(place: Any, case: Case) -> dict[str, Tensor]:
    logits = case["logits"].requires_grad_()
    output = place.shard(logits, case["lengths"], case["padding"])
    found = results(output, logits, case)
    alone, _ = token_log_probs(output, case["targets"], case["temperature"], case["chunk_size"], rows=case["rows"])
    found["without entropy"] = alone.detach()
    return found


def compare(processes: Any, case: Case, tensor: int, context: int) -> None:
    """Rounding grows with the logits, that of a gradient with the weights it is summed from."""
    logits = case["logits"].clone().requires_grad_()
    expected = results(logits, logits, case)
    expected["without entropy"] = expected["log_probs"]
    found = processes.run(sharded_results, case, tensor=tensor, context=context)[: tensor * context]
    tolerance = 1e-12 if logits.dtype == torch.float64 else 1e-6
    largest = float(logits.detach().masked_fill(logits == -torch.inf, 0).abs().max()) / case["temperature"]
    weight = float(case["weights"].abs().sum() + case["entropy_weights"].abs().sum()) / case["temperature"]
    for name in ("log_probs", "entropy", "likeliest", "without entropy"):
        assert all(torch.equal(found[0][name], other[name]) for other in found)
        torch.testing.assert_close(found[0][name], expected[name], rtol=tolerance, atol=tolerance * max(largest, 1))
    gradient = sum(each["gradient"] for each in found)
    torch.testing.assert_close(gradient, expected["gradient"], rtol=tolerance, atol=tolerance * max(weight, 1))
    likeliest = logits.detach()[case["rows"]].sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(expected["likeliest"], likeliest[:, : case["k"]])


@pytest.mark.parametrize(("tensor", "context"), [(1, 1), (2, 1), (1, 2)])
def test_shards_give_what_one_tensor_gives(two: Any, tensor: int, context: int) -> None:
    @settings(max_examples=60)
    @given(case=cases())
    def check(case: Case) -> None:
        compare(two, case, tensor, context)

    check()


def test_vocabulary_and_sequence_cut_at_once(four: Any) -> None:
    @settings(max_examples=40)
    @given(case=cases())
    def check(case: Case) -> None:
        compare(four, case, 2, 2)

    check()


def test_equal_logits_at_the_edge_of_the_likeliest_are_taken_by_their_id() -> None:
    logits = torch.tensor([[0.0, 1, 1, 1, 2], [1, 1, 1, 1, 1], [1, 0, 0, 3, 2], [-torch.inf, 0, -torch.inf, 0, 0]])
    rows = torch.arange(4)
    assert likeliest_ids(logits, rows, 2).tolist() == [[4, 1], [0, 1], [3, 4], [1, 3]]
    assert likeliest_ids(logits, rows, 4).tolist() == [[4, 1, 2, 3], [0, 1, 2, 3], [3, 4, 0, 1], [1, 3, 4, 0]]
    assert likeliest_ids(logits.bfloat16(), rows, 9)[0].tolist() == [4, 1, 2, 3, 0]
    assert likeliest_ids(logits, rows[:0], 2).shape == (0, 2)


def scalar_values(place: Any, output: Tensor, batch: dict[str, Any]) -> list[Tensor]:
    sharded, head = place.shard(output.requires_grad_(), batch["total_lengths"]), Head(Args.of())
    values, last = head.response_values(sharded, batch), head.last_token_values(sharded, batch)
    (values.square().sum() + (last**3).sum()).backward()
    assert output.grad is not None
    return [values.detach(), last.detach(), output.grad, values_at(sharded).detach()]


class Head(ScalarHeadSpecialization):
    """Only its getters are used."""

    def compute_loss(self, model_output: Any, batch: Any, reducer: Any) -> Any:
        """Never called."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_values_of_a_scalar_head_come_from_all_processes(two: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    masks = [torch.tensor([1, 1, 0]), torch.tensor([0]), torch.tensor([1, 1, 1, 1, 1])]
    batch = {"total_lengths": [5, 2, 6], "response_lengths": [3, 1, 5], "loss_masks": masks}
    output = torch.randn(13, 1, dtype=dtype)
    leaf = output.clone().requires_grad_()
    values, last = Head(Args.of()).response_values(leaf, batch), Head(Args.of()).last_token_values(leaf, batch)
    (values.square().sum() + (last**3).sum()).backward()
    first, second = two.run(scalar_values, output, batch, context=2)
    for index, expected in ((0, values), (1, last), (3, values_at(output))):
        assert torch.equal(first[index], second[index])
        assert torch.equal(first[index], expected.detach())
    assert torch.equal(first[2] + second[2], leaf.grad)


def some_rows(place: Any, logits: Tensor, rows: Tensor, targets: Tensor) -> list[Any]:
    output = place.shard(logits, [len(logits)]).select(rows)
    again = output.select(torch.tensor([1, 0]))
    log_probs, _ = token_log_probs(output, targets)
    return [output.shape, log_probs, token_log_probs(again, targets[[1, 0]])[0]]


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"context": 2}])
def test_selected_rows_are_an_output_of_their_own(two: Any, layout: dict[str, int]) -> None:
    torch.manual_seed(0)
    logits, rows, targets = torch.randn(6, 5), torch.tensor([4, 0, 4]), torch.tensor([1, 2, 3])
    expected, _ = token_log_probs(logits, targets, rows=rows)
    for shape, log_probs, again in two.run(some_rows, logits, rows, targets, **layout):
        assert shape == (3, 5)
        torch.testing.assert_close(log_probs, expected)
        torch.testing.assert_close(again, expected[[1, 0]])


def refusal(place: Any, ids: list[int]) -> str:
    output = place.shard(torch.zeros(2, 5), [2], 3)
    try:
        token_log_probs(output, torch.tensor(ids))
    except IndexError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("ids", [[0, 5], [-1, 0]])
def test_an_id_that_no_process_holds_is_refused_by_all(two: Any, ids: list[int]) -> None:
    message = f"targets {ids[0]} to {ids[1]} for a vocabulary of 5"
    assert two.run(refusal, ids, tensor=2) == [message, message]


def survive(place: Any, logits: Tensor) -> str:
    output = place.shard(logits, [len(logits)])
    if place.tensor_rank == 1:
        os._exit(1)
    try:
        token_log_probs(output, torch.zeros(len(logits), dtype=torch.int64))
    except RuntimeError as error:
        return type(error).__name__
    return "no error"


def test_a_process_that_dies_is_an_error_to_the_others_and_not_a_hang(two: Any) -> None:
    assert two.run(survive, torch.zeros(3, 4), tensor=2, may_die=True) == ["RuntimeError", None]


USES: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x.float(),
    "softmax": lambda x: x.log_softmax(-1),
    "function": lambda x: torch.log_softmax(x, -1),
    "functional": lambda x: F.cross_entropy(x, torch.zeros(3, dtype=torch.int64)),
    "list": lambda x: torch.cat([x, x]),
    "sum": lambda x: 0 * x.sum(),
    "index": lambda x: x[0],
    "iteration": list,
    "division": lambda x: x / 0.7,
    "reflected": lambda x: 1 + x,
    "tensor first": lambda x: torch.ones(4, 4) @ x,
    "negative": lambda x: -x,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_use_as_a_tensor_is_refused_with_the_ways_out(use: Callable[[Any], Any]) -> None:
    output = ShardedOutput(torch.zeros(3, 4), 4)
    with pytest.raises(TypeError, match=r"ShardedOutput.*response_log_probs.*token_log_probs.*tensor-model-parallel"):
        use(output)


def test_an_output_tells_its_shape_type_and_place_and_can_be_copied() -> None:
    output = ShardedOutput(torch.zeros(3, 8, dtype=torch.bfloat16), 5)
    assert (output.shape, len(output), output.dtype, output.device.type) == ((3, 5), 3, torch.bfloat16, "cpu")
    assert copy.copy(output).shape == (3, 5)
    assert not isinstance(output, Tensor)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local": torch.zeros(3), "vocabulary": 3}, r"expected \[T_local, V_local\]"),
        ({"local": torch.zeros(3, 4), "vocabulary": 0}, "vocabulary 0 must be positive"),
        ({"local": torch.zeros(3, 4), "vocabulary": 5}, "ids 0 to 3 are not the whole vocabulary of 5"),
        ({"local": torch.zeros(3, 4), "vocabulary": 8, "first_id": 4}, "ids 4 to 7 are not the whole"),
        ({"local": torch.zeros(3, 4), "vocabulary": 4, "context_group": object()}, "without local_rows"),
    ],
)
def test_parts_that_are_no_part_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShardedOutput(**fields)
