"""The tokens on which student and teacher are compared when the teacher tells only its likeliest ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_TAIL = 1e-7
"""Smallest mass taken to lie outside the compared tokens: what fp32 can tell from 0 in ``1 - sum of probs``."""

NOTHING = -1e4
"""Stands for the log-prob of an event that cannot happen; a probability of 0 in any dtype, and finite."""


@dataclass(frozen=True)
class Support:
    """Distinct tokens per position, and the teacher's log-probs of them.

    Args:
        ids: ``[N, M]`` int64.
        log_probs: ``[N, M]`` of the teacher, without gradient.
        present: ``[N, M]`` bool; False for repetitions, which count for nothing.
        whole: ``[N]`` bool, whether the tokens present are all there are, so that nothing lies outside them.
        missing: ``[N]``, the share of the student's ids that the teacher did not tell.
    """

    ids: Tensor
    log_probs: Tensor
    present: Tensor
    whole: Tensor
    missing: Tensor


def union_support(
    teacher_ids: Tensor, teacher_log_probs: Tensor, vocabulary: int, student_ids: Tensor | None = None
) -> Support:
    """The ids of the teacher, joined by those of the student.

    What the teacher did not tell of an id of the student is replaced by a floor, which cannot be above what is left
    of its mass: ``q = min((1 - Q) / (V - K), least q told)``, where Q is the mass of the K ids told. That is exact
    when the teacher spreads the rest evenly.

    Args:
        teacher_ids: ``[N, K]`` int, in any order; an id told twice counts once.
        teacher_log_probs: ``[N, K]``.
        vocabulary: V, number of ids there are.
        student_ids: ``[N, S]`` int; unset means none.

    Returns:
        A support with ``M = K + S``.
    """
    if student_ids is None:
        student_ids = teacher_ids[:, :0]
    told = teacher_ids.shape[1]
    ids = torch.cat([teacher_ids, student_ids], dim=-1).long()
    ids, order = ids.sort(dim=-1, stable=True)
    present = torch.ones_like(ids, dtype=torch.bool)
    present[:, 1:] = ids[:, 1:] != ids[:, :-1]
    # The sort is stable and the teacher's come first, so the first of equal ids is the one that was told.
    known = present & (order < told)
    padded = torch.cat([teacher_log_probs, teacher_log_probs.new_full(student_ids.shape, NOTHING)], dim=-1)
    log_probs = torch.where(known, padded.gather(-1, order), NOTHING)
    missing = present & ~known
    log_probs = torch.where(missing, _floor(log_probs, known, vocabulary)[:, None], log_probs)
    share = missing.sum(-1) / max(student_ids.shape[1], 1)
    return Support(ids, log_probs, present, present.sum(-1) >= vocabulary, share.to(log_probs.dtype))


def _floor(log_probs: Tensor, known: Tensor, vocabulary: int) -> Tensor:
    """``[N]``: the most that can be said for the log-prob of an id the teacher did not tell."""
    others = (vocabulary - known.sum(-1)).clamp(min=1)
    even = log_rest(log_probs.logsumexp(-1)) - others.log()
    return torch.minimum(even, log_probs.masked_fill(~known, torch.inf).amin(-1))


def log_rest(log_mass: Tensor) -> Tensor:
    """``log(1 - exp(log_mass))``, with ``1 - exp(log_mass)`` taken to be ``LEAST_TAIL`` at least."""
    return torch.log(-torch.expm1(log_mass.clamp(max=-LEAST_TAIL)))
