"""Divergences over the tokens of a `Support` and, in most of them, one bucket for all tokens outside it.

p is the student, q the teacher, U the support, ``P = sum_U p`` and ``Q = sum_U q``:

====================  ==================================================================================
``truncated_kl``      ``sum_U p log(p / q)``: no divergence, may be negative and has its minimum elsewhere
``renormalized_kl``   the same of ``p / P`` and ``q / Q``: at least 0, blind to the mass outside U
``tail_kl``           ``sum_U p log(p / q) + (1 - P) log((1 - P) / (1 - Q))``: the KL of the distributions
                      in which all tokens outside U are one event, hence at least 0, at most the full
                      KL(p || q), and equal to it when U is the vocabulary
``generalized_jsd``   the divergence of Agarwal et al. (2024), on U and the same bucket
====================  ==================================================================================

The gradient of each is that of its value: p is differentiated through the full softmax, U and q are held fixed. A
token of probability 0 (a banned one, with a logit of -inf) adds 0 to the value and to the gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stacx_plugin_distill.objectives.support import NOTHING, Support, log_rest

NO_TAIL = 1e-9
"""Mass of the student outside the support below which the bucket adds nothing to a reverse KL."""


def truncated_kl(log_probs: Tensor, support: Support) -> Tensor:
    """Reverse KL cut off at the support, ``[N]``.

    Args:
        log_probs: ``[N, M]`` of the student for ``support.ids``, under the full softmax, with gradient.
        support: what the teacher says.
    """
    student, live = _finite(log_probs, support.present)
    return _kl(student, support.log_probs, live)


def renormalized_kl(log_probs: Tensor, support: Support) -> Tensor:
    """Reverse KL of the two distributions given that the token is in the support, ``[N]``; arguments as above."""
    student, live = _finite(log_probs, support.present)
    student = student - student.logsumexp(-1, keepdim=True)
    return _kl(student, support.log_probs - support.log_probs.logsumexp(-1, keepdim=True), live)


def tail_kl(log_probs: Tensor, support: Support) -> Tensor:
    """Reverse KL over the tokens of the support and a bucket for all others, ``[N]``; arguments as above."""
    student, teacher, live = _with_bucket(log_probs, support)
    return _kl(student, teacher, live)


def generalized_jsd(log_probs: Tensor, support: Support, beta: float) -> Tensor:
    """Generalised Jensen-Shannon divergence over the support and a bucket for all other tokens, ``[N]``.

    With ``m = beta q + (1 - beta) p`` it is ``beta KL(q || m) + (1 - beta) KL(p || m)`` for beta between 0 and 1.
    That goes to 0 at both ends, so the ends are defined apart, as TRL does: beta 0 is the forward KL(q || p), beta 1
    the reverse KL(p || q).

    Args:
        log_probs: ``[N, M]`` of the student for ``support.ids``, under the full softmax, with gradient.
        support: what the teacher says.
        beta: in [0, 1].
    """
    if beta == 1:
        return tail_kl(log_probs, support)
    student, teacher, _ = _with_bucket(log_probs, support)
    told = torch.cat([support.present, ~support.whole[:, None]], dim=-1)
    if beta == 0:
        return _kl(teacher, student, told)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * _kl(teacher, mixture, told) + (1 - beta) * _kl(student, mixture, told)


def _kl(first: Tensor, second: Tensor, live: Tensor) -> Tensor:
    """``sum exp(first) (first - second)`` over the live entries of finite log-probs ``[N, M]``."""
    return torch.where(live, first.exp() * (first - second), 0.0).sum(-1)


def _finite(log_probs: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs in which what is absent or impossible is finite and has no gradient, and what is left."""
    live = present & torch.isfinite(log_probs)
    return torch.where(live, log_probs, NOTHING), live


def _with_bucket(log_probs: Tensor, support: Support) -> tuple[Tensor, Tensor, Tensor]:
    """Student and teacher ``[N, M + 1]`` with the bucket in the last place, and which entries the student can take."""
    student, live = _finite(log_probs, support.present)
    mass = student.logsumexp(-1, keepdim=True)
    teacher_rest = log_rest(support.log_probs.logsumexp(-1, keepdim=True))
    has_tail = ~support.whole[:, None] & (-torch.expm1(mass) >= NO_TAIL)
    return (
        torch.cat([student, log_rest(mass)], dim=-1),
        torch.cat([support.log_probs, teacher_rest], dim=-1),
        torch.cat([live, has_tail], dim=-1),
    )
