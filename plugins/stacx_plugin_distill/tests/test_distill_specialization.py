"""The student's loss on packed samples: against dense distributions, and blind to what is masked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import Args, Batch
from stacx_core.objectives import make_reducer
from stacx_plugin_distill.knobs import LOSS_KNOBS, MODES, check_distill
from stacx_plugin_distill.specialization import DistillSpecialization

VOCABULARY = 6
LENGTHS, RESPONSES = [4, 5], [2, 3]
MASKS = [torch.tensor([1, 1]), torch.tensor([1, 0, 1])]
ROWS = [1, 2, 5, 6, 7]
"""Rows of the packed logits that predict the response tokens."""


@pytest.fixture
def args_of() -> Callable[..., Args]:
    """Arguments of `opd` with some of them set."""

    def build(**values: Any) -> Args:
        host = {"rollout_temperature": 1.0, "log_probs_chunk_size": None, "loss_aggregation": "sample_mean"}
        return Args({**host, **{knob.name: knob.default for knob in LOSS_KNOBS}, **values})

    return build


def packed(teacher: Tensor, told: int, old: Tensor | None = None) -> Batch:
    """Two samples with the teacher's view of their responses, taken from its logits ``[9, V]``."""
    torch.manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (1, 9))
    log_q = teacher[ROWS].log_softmax(-1)
    chosen = tokens[0, torch.tensor(ROWS) + 1, None]
    top = log_q.topk(told, dim=-1)
    batch = {
        "tokens": tokens,
        "total_lengths": LENGTHS,
        "response_lengths": RESPONSES,
        "loss_masks": MASKS,
        "teacher_log_probs": list(log_q.gather(-1, chosen)[:, 0].split(RESPONSES)),
        "teacher_topk_ids": list(top.indices.int().split(RESPONSES)),
        "teacher_topk_log_probs": list(top.values.split(RESPONSES)),
    }
    if old is not None:
        batch["log_probs"] = list(old[ROWS].log_softmax(-1).gather(-1, chosen)[:, 0].split(RESPONSES))
    return batch


def loss_of(args: Args, logits: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    reducer = make_reducer("sample_mean", RESPONSES, MASKS)
    return DistillSpecialization(args).compute_loss(logits, batch, reducer)


def logits() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(9, VOCABULARY, dtype=torch.float64), torch.randn(9, VOCABULARY, dtype=torch.float64)


def mean_of_samples(per_token: Tensor) -> float:
    """Over the trained tokens, which are the first two, the third and the fifth."""
    return float(per_token[:2].detach().mean() + per_token[[2, 4]].detach().mean())


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("missing", ["floor", "tail"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_topk_of_the_whole_vocabulary_is_the_dense_kl(
    args_of: Any, chunk: int | None, missing: str, temperature: float
) -> None:
    student, teacher = logits()
    args = args_of(
        distill_kl_mode="topk",
        distill_topk=VOCABULARY,
        distill_missing=missing,
        log_probs_chunk_size=chunk,
        rollout_temperature=temperature,
    )
    student.requires_grad_()
    loss, metrics = loss_of(args, student, packed(teacher, VOCABULARY))
    log_p, log_q = (student[ROWS] / temperature).log_softmax(-1), teacher[ROWS].log_softmax(-1)
    dense = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert loss.item() == pytest.approx(mean_of_samples(dense), abs=1e-9)
    (got,) = torch.autograd.grad(loss, student)
    (expected,) = torch.autograd.grad(dense[:2].mean() + dense[[2, 4]].mean(), student)
    torch.testing.assert_close(got, expected)
    if missing == "floor":
        assert metrics["topk_missing_frac"].tolist() == [0.0, 4.0]


def test_gkd_of_the_whole_vocabulary_is_the_dense_divergence(args_of: Any) -> None:
    student, teacher = logits()
    args = args_of(distill_kl_mode="gkd", distill_topk=VOCABULARY, distill_jsd_beta=0.3)
    loss, _ = loss_of(args, student, packed(teacher, VOCABULARY))
    log_p, log_q = student[ROWS].log_softmax(-1), teacher[ROWS].log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    m = (0.3 * q + 0.7 * p).log()
    dense = 0.3 * (q * (log_q - m)).sum(-1) + 0.7 * (p * (log_p - m)).sum(-1)
    assert loss.item() == pytest.approx(mean_of_samples(dense), abs=1e-9)


@pytest.mark.parametrize("tail", ["tail", "none", "renorm"])
def test_two_likeliest_tokens_of_each(args_of: Any, tail: str) -> None:
    """Against a loop over positions and sets."""
    student, teacher = logits()
    args = args_of(distill_kl_mode="topk", distill_topk=2, distill_tail=tail)
    loss, metrics = loss_of(args, student, packed(teacher, 2))
    values, missing = [], 0.0
    for p, q in zip(student[ROWS].softmax(-1), teacher[ROWS].softmax(-1), strict=True):
        theirs, own = set(q.topk(2).indices.tolist()), set(p.topk(2).indices.tolist())
        told = sum(float(q[i]) for i in theirs)
        floor = min((1 - told) / (VOCABULARY - 2), min(float(q[i]) for i in theirs))
        pairs = [(float(p[i]), float(q[i]) if i in theirs else floor) for i in theirs | own]
        p_mass, q_mass = (sum(pair[side] for pair in pairs) for side in (0, 1))
        scale = (p_mass, q_mass) if tail == "renorm" else (1.0, 1.0)
        value = sum(a / scale[0] * math.log(a / scale[0] / (b / scale[1])) for a, b in pairs)
        if tail == "tail":
            value += (1 - p_mass) * math.log((1 - p_mass) / (1 - q_mass))
        values.append(value)
        missing += len(own - theirs) / 2 if len(values) != 4 else 0
    assert loss.item() == pytest.approx(mean_of_samples(torch.tensor(values)), abs=1e-6)
    assert metrics["topk_missing_frac"].tolist() == [missing, 4.0]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_masked_neither_counts_nor_has_a_gradient(args_of: Any, mode: str) -> None:
    student, teacher = logits()
    args = args_of(distill_kl_mode=mode, distill_topk=2)
    clean, dirty = packed(teacher, 2, teacher), packed(teacher, 2, teacher)
    for key in ("teacher_log_probs", "teacher_topk_log_probs", "log_probs"):
        dirty[key][1][1] = math.nan
    student[6] = math.nan
    student.requires_grad_()
    loss, metrics = loss_of(args, student, dirty)
    loss.backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert not student.grad[[0, 3, 4, 6, 8]].any(), "prompt rows, last rows and the masked row"
    student.data[6] = 0.0
    expected, expected_metrics = loss_of(args, student, clean)
    assert loss.item() == pytest.approx(expected.item())
    assert {name: pair.tolist() for name, pair in metrics.items()} == {
        name: pair.tolist() for name, pair in expected_metrics.items()
    }


def test_k3_is_weights_with_the_ratio_to_the_policy_that_sampled(args_of: Any) -> None:
    student, teacher = logits()
    args = args_of(distill_kl_mode="k3_is")
    on_policy, _ = loss_of(args, student, packed(teacher, 2))
    same, _ = loss_of(args, student, packed(teacher, 2, student))
    moved, _ = loss_of(args, student, packed(teacher, 2, teacher))
    assert on_policy.item() == pytest.approx(same.item())
    assert moved.item() != pytest.approx(same.item())


def test_the_reverse_kl_of_the_sample_is_reported_in_every_mode(args_of: Any) -> None:
    student, teacher = logits()
    batch = packed(teacher, 2)
    chosen = batch["tokens"][0, torch.tensor(ROWS) + 1, None]
    difference = (student[ROWS].log_softmax(-1) - teacher[ROWS].log_softmax(-1)).gather(-1, chosen)[:, 0]
    for mode in MODES:
        _, metrics = loss_of(args_of(distill_kl_mode=mode, distill_topk=2), student, batch)
        assert metrics["reverse_kl"].tolist() == pytest.approx([float(difference[[0, 1, 2, 4]].sum()), 4.0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"distill_topk": 8}, "--distill-topk has no effect on --distill-kl-mode k3_sample"),
        ({"distill_kl_mode": "gkd", "distill_tail": "none"}, "--distill-tail has no effect .* or use topk"),
        ({"distill_kl_mode": "topk", "distill_jsd_beta": 0.1}, "--distill-jsd-beta has no effect .* or use gkd"),
        ({"distill_missing": "query"}, "or use topk or gkd"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(args_of: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_distill(args_of(**values))
