"""Losses on preferences: pure functions of ``[P]`` tensors, one entry per pair (or per response for ``kto_loss``).

Symbols: S is the sum of a response's log-probs under the policy, R the same under the reference, n the number
of its trained tokens; c and r mark the chosen and the rejected response. Logs are natural. Every function
keeps the dtype of its input, and none of them reduces.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LARGEST_AVERAGE = -1e-6
"""``orpo_loss`` takes a mean log-prob above this for this: the odds of a certain response are infinite."""


def sigmoid_loss(delta: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """``-(1 - e) log sigmoid(beta delta) - e log sigmoid(-beta delta)``.

    Rafailov et al. 2023 (arXiv 2305.18290), eq. 7, for e = 0; conservative DPO, Mitchell 2023, otherwise: a share
    e of the labels is taken to be wrong, and the loss has its minimum where the model is that unsure.

    Args:
        delta: ``[P]``, ``(S_c - R_c) - (S_r - R_r)``.
        beta: strength of the pull towards the reference.
        label_smoothing: e in [0, 1/2).
    """
    margin = beta * delta
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def robust_loss(delta: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """``(-(1 - e) log sigmoid(beta delta) + e log sigmoid(-beta delta)) / (1 - 2e)``; may be negative.

    Ray Chowdhury et al. 2024 (arXiv 2403.00409): when labels are flipped with probability e, its mean over
    the flips is the sigmoid loss of the true labels. Arguments as for ``sigmoid_loss``.
    """
    margin = beta * delta
    observed = -(1 - label_smoothing) * logsigmoid(margin) + label_smoothing * logsigmoid(-margin)
    return observed / (1 - 2 * label_smoothing)


def hinge_loss(delta: Tensor, beta: float) -> Tensor:
    """``max(0, 1 - beta delta)``: Zhao et al. 2023 (SLiC, arXiv 2305.10425), with a reference as in DPO."""
    return torch.relu(1 - beta * delta)


def ipo_loss(delta: Tensor, beta: float) -> Tensor:
    """``(delta - 1 / (2 beta))^2``: Azar et al. 2023 (arXiv 2310.12036), eq. 17.

    Args:
        delta: ``[P]``, the difference of log-ratios per token, ``(S_c - R_c) / n_c - (S_r - R_r) / n_r``; or of
            their sums, as the paper has it.
        beta: the paper's tau.
    """
    return (delta - 1 / (2 * beta)).square()


def simpo_loss(delta: Tensor, beta: float, gamma: float) -> Tensor:
    """``-log sigmoid(beta delta - gamma)``: Meng et al. 2024 (arXiv 2405.14734), eq. 6, without a reference.

    Args:
        delta: ``[P]``, ``S_c / n_c - S_r / n_r``.
        beta: scale of the rewards.
        gamma: margin by which the chosen response should win.
    """
    return -logsigmoid(beta * delta - gamma)


def orpo_loss(chosen: Tensor, rejected: Tensor, weight: float) -> Tensor:
    """``-a_c - weight log sigmoid(log odds(a_c) - log odds(a_r))``: Hong et al. 2024 (arXiv 2403.07691), eq. 6.

    ``a = S / n`` and ``log odds(a) = a - log(1 - e^a)``. Without a reference; the first term is supervised
    fine-tuning on the chosen response.

    Args:
        chosen, rejected: ``[P]``, a_c and a_r, at most 0.
        weight: the paper's lambda.
    """
    return -chosen - weight * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def _log_odds(average: Tensor) -> Tensor:
    """``a - log(1 - e^a)``, by whichever form of the logarithm keeps its digits."""
    average = average.clamp(max=LARGEST_AVERAGE)
    near = average > -math.log(2)
    small = torch.log(-torch.expm1(torch.where(near, average, -1.0)))
    large = torch.log1p(-torch.exp(torch.where(near, -1.0, average)))
    return average - torch.where(near, small, large)


def kto_loss(
    log_ratio: Tensor,
    desirable: Tensor,
    baseline: Tensor,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """``w_D (1 - sigmoid(beta (l - z)))`` where desirable, ``w_U (1 - sigmoid(beta (z - l)))`` where not.

    Ethayarajh et al. 2024 (arXiv 2402.01306), section 4; responses need no partner.

    Args:
        log_ratio: ``[B]``, ``l = S - R``.
        desirable: ``[B]`` bool.
        baseline: ``[B]``, z, without gradient; see ``stacx_plugin_preference.kto``.
        beta: strength of the pull towards the reference.
        desirable_weight, undesirable_weight: w_D and w_U; they balance unequal numbers of either kind.
    """
    sign = torch.where(desirable, 1.0, -1.0).to(log_ratio)
    weight = torch.where(desirable, desirable_weight, undesirable_weight).to(log_ratio)
    return weight * torch.sigmoid(-beta * sign * (log_ratio - baseline))


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, center: float = 0.0) -> Tensor:
    """``-log sigmoid(r_c - r_r - margin) + center (r_c + r_r)^2``.

    Bradley and Terry 1952; the margin is that of Touvron et al. 2023 (Llama 2, arXiv 2307.09288), eq. 2, the penalty
    that of Eisenstein et al. 2023 (arXiv 2312.09244), eq. 2: it fixes the level of the rewards, which the
    comparison leaves open.

    Args:
        chosen, rejected: ``[P]`` rewards.
        margin: ``[P]`` or one number; by how much the chosen response is better.
        center: weight of the penalty.
    """
    return -logsigmoid(chosen - rejected - margin) + center * (chosen + rejected).square()


def preferred(margin: Tensor) -> Tensor:
    """1 where the margin is positive, 0 where it is negative, 1/2 where it is 0; shape and dtype of ``margin``."""
    return (torch.sign(margin.detach()) + 1) / 2
