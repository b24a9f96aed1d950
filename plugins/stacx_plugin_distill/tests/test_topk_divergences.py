"""Divergences over a support: worked values, and the laws that make them divergences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stacx_core.objectives import likeliest_ids, token_log_probs
from stacx_plugin_distill.objectives import (
    Support,
    generalized_jsd,
    renormalized_kl,
    tail_kl,
    truncated_kl,
    union_support,
)

STUDENT = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -2.0]])
TEACHER = torch.tensor([[-0.5, 2.0, 1.5, 0.8, -1.0, -1.5]])

Divergence = Callable[[Tensor, Support], Tensor]
JSD: dict[float, Divergence] = {
    beta: lambda log_probs, support, beta=beta: generalized_jsd(log_probs, support, beta)
    for beta in (0.0, 0.1, 0.5, 0.9, 1.0)
}
DIVERGENCES: list[Divergence] = [tail_kl, renormalized_kl, *JSD.values()]


def told(ids: list[int], teacher: Tensor = TEACHER) -> Support:
    """The teacher tells these ids and no others are compared."""
    chosen = torch.tensor([ids])
    return union_support(chosen, teacher.log_softmax(-1).gather(-1, chosen), teacher.shape[1])


def of(divergence: Divergence, support: Support, student: Tensor = STUDENT) -> float:
    return divergence(student.log_softmax(-1).gather(-1, support.ids), support).item()


@pytest.mark.parametrize(
    ("divergence", "ids", "expected"),
    [
        (truncated_kl, [0, 1, 2], 1.190400),
        (renormalized_kl, [0, 1, 2], 1.259401),
        (tail_kl, [0, 1, 2], 1.135397),
        (tail_kl, [0, 1], 1.131339),
        (tail_kl, [0, 1, 2, 3, 4, 5], 1.141145),
        (truncated_kl, [0, 1, 2, 3, 4, 5], 1.141145),
        (JSD[0.0], [0, 1, 2, 3, 4, 5], 0.657990),
        (JSD[0.1], [0, 1, 2, 3, 4, 5], 0.060087),
        (JSD[0.5], [0, 1, 2, 3, 4, 5], 0.186343),
        (JSD[0.9], [0, 1, 2, 3, 4, 5], 0.088033),
        (JSD[1.0], [0, 1, 2, 3, 4, 5], 1.141145),
    ],
)
def test_six_tokens(divergence: Divergence, ids: list[int], expected: float) -> None:
    assert of(divergence, told(ids)) == pytest.approx(expected, abs=2e-6)


def test_masses_and_likeliest_tokens() -> None:
    assert likeliest_ids(STUDENT, torch.tensor([0]), 2, 1).tolist() == [[0, 1]]
    assert likeliest_ids(TEACHER, torch.tensor([0]), 2, 1).tolist() == [[1, 2]]
    support = told([2, 0, 1])
    assert support.log_probs.exp().sum().item() == pytest.approx(0.815837, abs=2e-6)
    student = STUDENT.softmax(-1).gather(-1, support.ids)
    assert student.sum().item() == pytest.approx(0.886629, abs=2e-6)


def test_an_id_the_teacher_did_not_tell_gets_a_floor() -> None:
    ids = torch.tensor([[1, 2]])
    support = union_support(ids, TEACHER.log_softmax(-1).gather(-1, ids), 6, torch.tensor([[0, 1]]))
    assert support.ids[support.present].tolist() == [0, 1, 2]
    assert support.log_probs[0, 0].exp().item() == pytest.approx(0.055955, abs=2e-6)
    assert support.missing.item() == 0.5
    assert of(tail_kl, support) == pytest.approx(0.954062, abs=2e-6)


def test_a_floor_is_not_above_the_least_that_was_told() -> None:
    """Two of three ids told with 0.5 and 0.1: the rest of 0.4 would make the third likelier than the second."""
    told_of = torch.tensor([[0.5, 0.1]]).log()
    support = union_support(torch.tensor([[0, 1]]), told_of, 3, torch.tensor([[2]]))
    assert support.log_probs[0].exp().tolist() == pytest.approx([0.5, 0.1, 0.1])


def distribution(probs: dict[int, float], size: int = 20) -> Tensor:
    """Logits of the given probabilities, the rest spread evenly over the other ids."""
    rest = (1 - sum(probs.values())) / (size - len(probs))
    return torch.tensor([[probs.get(index, rest) for index in range(size)]], dtype=torch.float64).log()


def test_union_of_two_pairs() -> None:
    """Student {3: 0.4, 9: 0.2, 7: 0.1}, teacher {3: 0.5, 7: 0.3, 9: 0.05}; then the teacher does not tell of 9."""
    student, teacher = distribution({3: 0.4, 9: 0.2, 7: 0.1}), distribution({3: 0.5, 7: 0.3, 9: 0.05})
    for ids, reverse, forward in (([3, 7, 9], 0.286084, 0.267869), ([7, 3], 0.259027, 0.257897)):
        support = told(ids, teacher)
        assert of(tail_kl, support, student) == pytest.approx(reverse, abs=2e-6)
        assert of(JSD[0.0], support, student) == pytest.approx(forward, abs=2e-6)
    assert of(truncated_kl, told([3, 7, 9], teacher), student) == pytest.approx(0.078140, abs=2e-6)
    assert of(renormalized_kl, told([3, 7, 9], teacher), student) == pytest.approx(0.305785, abs=2e-6)


def test_an_id_told_twice_and_the_order_of_ids_change_nothing() -> None:
    for divergence in (truncated_kl, *DIVERGENCES):
        expected = of(divergence, told([0, 1, 2]))
        assert of(divergence, told([2, 0, 1, 0])) == pytest.approx(expected, abs=1e-6)


def test_forward_kl_of_the_teachers_two_likeliest_of_three() -> None:
    """-0.048267 + 0.1 ln(0.1 / 0.05) with the bucket, and student minus teacher as the gradient of the logits."""
    student = torch.tensor([[0.62, 0.33, 0.05]]).log().requires_grad_()
    support = told([0, 1], torch.tensor([[0.6, 0.3, 0.1]]).log())
    log_probs, _ = token_log_probs(student, support.ids)
    loss = generalized_jsd(log_probs, support, 0.0)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.021048, abs=2e-6)
    assert student.grad is not None
    assert student.grad[0].tolist() == pytest.approx([0.02, 0.03, -0.05], abs=2e-6)


logits = st.lists(st.floats(-8, 8), min_size=6, max_size=6).map(lambda row: torch.tensor([row], dtype=torch.float64))


@settings(deadline=None)
@given(logits, logits, st.integers(1, 6))
def test_the_bucket_gives_a_lower_bound_that_is_tight_at_the_whole_vocabulary(p: Tensor, q: Tensor, count: int) -> None:
    chosen = [*q.topk(count).indices[0].tolist(), *p.topk(count).indices[0].tolist()]
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    reverse = (log_p.exp() * (log_p - log_q)).sum().item()
    forward = (log_q.exp() * (log_q - log_p)).sum().item()
    coarse, coarse_forward = of(tail_kl, told(chosen, q), p), of(JSD[0.0], told(chosen, q), p)
    assert -1e-6 <= coarse <= reverse + 1e-6
    assert -1e-6 <= coarse_forward <= forward + 1e-6
    if count == 6:
        assert coarse == pytest.approx(reverse, abs=1e-9)
        assert coarse_forward == pytest.approx(forward, abs=1e-9)


@settings(deadline=None)
@given(logits, logits, st.permutations(range(6)), st.integers(1, 6))
def test_the_names_of_tokens_do_not_matter(p: Tensor, q: Tensor, order: list[int], count: int) -> None:
    ids = list(range(count))
    moved = [order.index(i) for i in ids]
    for divergence in (truncated_kl, *DIVERGENCES):
        expected = of(divergence, told(ids, q), p)
        assert of(divergence, told(moved, q[:, order]), p[:, order]) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(logits, st.integers(1, 6))
def test_everything_is_0_where_both_agree(p: Tensor, count: int) -> None:
    for divergence in (truncated_kl, *DIVERGENCES):
        x = p.clone().requires_grad_()
        support = told(p.topk(count).indices[0].tolist(), p)
        value = divergence(x.log_softmax(-1).gather(-1, support.ids), support)
        value.sum().backward()
        assert value.item() == pytest.approx(0, abs=1e-9)
        assert x.grad is not None
        if divergence is not truncated_kl:
            assert x.grad.abs().max().item() == pytest.approx(0, abs=1e-6)


@settings(deadline=None)
@given(
    st.lists(st.floats(-60, 60), min_size=6, max_size=6),
    st.lists(st.floats(-60, 60), min_size=6, max_size=6),
    st.integers(1, 6),
    st.booleans(),
)
def test_single_precision_gives_neither_nan_nor_a_negative_value(
    p: list[float], q: list[float], count: int, banned: bool
) -> None:
    """Nearly all mass inside, nearly none, and a banned token: 1 - mass is never negative inside a logarithm."""
    student, teacher = torch.tensor([p]), torch.tensor([q])
    if banned:
        student[0, 0] = -torch.inf
    x = student.clone().requires_grad_()
    ids = teacher.topk(count).indices
    log_q = teacher.log_softmax(-1).gather(-1, ids)
    supports = union_support(ids, log_q, 6), union_support(ids, log_q, 6, student.topk(count).indices)
    for support in supports:
        for divergence in (tail_kl, renormalized_kl, JSD[0.1], JSD[0.5], JSD[0.9]):
            x.grad = None
            value = divergence(token_log_probs(x, support.ids)[0], support)
            value.sum().backward()
            assert value.item() >= -3e-6
            assert torch.isfinite(value).all()
            assert x.grad is not None
            assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("divergence", [truncated_kl, *DIVERGENCES])
@pytest.mark.parametrize("ids", [[1, 2], [0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_gradients_are_those_of_the_values(divergence: Divergence, ids: list[int]) -> None:
    support = told(ids, TEACHER.double())

    def value(x: Tensor) -> Tensor:
        return divergence(token_log_probs(x, support.ids)[0], support)

    assert torch.autograd.gradcheck(value, (STUDENT.double().requires_grad_(),))


def test_the_ends_of_the_jsd_are_not_its_limits() -> None:
    """Close to 0 the divergence is beta times the forward KL, and at 0 it is that KL itself."""
    whole = told(list(range(6)))
    near_end = of(lambda x, support: generalized_jsd(x, support, 1e-4), whole)
    assert near_end < 1e-4
    assert near_end / 1e-4 == pytest.approx(of(JSD[0.0], whole), rel=1e-2)
