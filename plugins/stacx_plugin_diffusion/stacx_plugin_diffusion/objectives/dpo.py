"""Flow-DPO: preferences between two samples, by the errors of the model on them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from stacx_plugin_diffusion.objectives.flow import Terms, velocity_error, velocity_target
from stacx_plugin_diffusion.objectives.reductions import require_same_shape, upcast

BETA_SCALES = ("constant", "data")


def paired(x: Tensor) -> Tensor:
    """``[P, ...]`` -> ``[2 P, ...]``: the noise or noise level of a pair, for its chosen and its rejected half."""
    return torch.cat([x, x])


def flow_dpo_terms(
    velocity: Tensor,
    reference_velocity: Tensor,
    x0: Tensor,
    noise: Tensor,
    sigma: Tensor,
    *,
    beta: float,
    beta_scale: str = "constant",
    sft_weight: float = 0.0,
    mask: Tensor | None = None,
) -> Terms:
    """``-log sigmoid(-beta / 2 m)`` per pair, ``m = (e_w - e_w_ref) - (e_l - e_l_ref)``.

    ``e = mean_dims (v - (eps - x0))^2``. Wallace et al. 2023 (Diffusion-DPO, arXiv 2311.12908) in the form that
    Liu et al. 2025 (Flow-DPO, arXiv 2501.13918) give it for velocities. Halves are stacked, never interleaved: the P
    chosen latents, then the P rejected ones. Both halves of a pair share their noise and its level, so
    these are given once: states are ``interpolate(x0, paired(noise), paired(sigma))``. The loss starts at ``log 2``.

    Args:
        velocity, reference_velocity: ``[2 P, *D]``; the first with the gradient of the policy.
        x0: ``[2 P, *D]``.
        noise, sigma: ``[P, *D]`` and ``[P]``.
        beta: strength of the pull to the reference, for means over dimensions: 100 to 5000.
        beta_scale: ``constant``, or ``data`` for ``beta (1 - sigma)^2``.
        sft_weight: adds this times ``e_w``, lest both errors rise.
        mask: which of the dimensions of ``x0`` count, see ``mean_over_dims``.

    Returns:
        ``[P]`` terms, and ``accuracy`` (1/2 for a tie), ``chosen_reward`` and ``rejected_reward``
        (``-beta / 2 (e - e_ref)``), ``chosen_error`` and ``rejected_error``.

    Raises:
        ValueError: an unknown scale, or shapes that do not fit.
    """
    if len(x0) != 2 * len(noise):
        raise ValueError(f"expected the chosen and the rejected halves of {len(noise)} pairs, got {len(x0)} latents")
    require_same_shape(velocity=velocity, reference_velocity=reference_velocity)
    target = velocity_target(x0, paired(noise))
    chosen, rejected = velocity_error(velocity, target, mask).chunk(2)
    chosen_ref, rejected_ref = velocity_error(reference_velocity.detach(), target, mask).chunk(2)
    require_same_shape(pair=chosen, sigma=sigma)
    strength = _strength(sigma, beta, beta_scale)
    chosen_reward, rejected_reward = -strength / 2 * (chosen - chosen_ref), -strength / 2 * (rejected - rejected_ref)
    margin = chosen_reward - rejected_reward
    seen = {"accuracy": (margin.sign() + 1) / 2, "chosen_reward": chosen_reward, "rejected_reward": rejected_reward}
    seen |= {"chosen_error": chosen, "rejected_error": rejected}
    return softplus(-margin) + sft_weight * chosen, {name: value.detach() for name, value in seen.items()}


def _strength(sigma: Tensor, beta: float, scale: str) -> Tensor:
    """``[P]``: beta at each noise level."""
    if scale not in BETA_SCALES:
        raise ValueError(f"beta scale {scale!r} is unknown; choose one of {', '.join(BETA_SCALES)}")
    sigma = upcast(sigma)
    return beta * (torch.ones_like(sigma) if scale == "constant" else (1 - sigma).square())


def best_and_worst(rewards: Tensor, group_ids: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The samples of the highest and the lowest reward of each group, the first of equals.

    Groups whose rewards do not differ make no pair, groups of one among them.

    Args:
        rewards: ``[N]``.
        group_ids: ``[N]`` int64.
        counted: ``[N]`` bool, samples with a usable reward. None: all.

    Returns:
        ``(chosen [P], rejected [P])`` int64 indices into the batch, by rising group id.

    Raises:
        ValueError: shapes that differ, or a counted reward that is not finite.
    """
    require_same_shape(rewards=rewards, group_ids=group_ids)
    members: dict[int, list[tuple[float, int]]] = {}
    for i, (reward, group) in enumerate(zip(rewards.tolist(), group_ids.tolist(), strict=True)):
        if counted is None or counted[i]:
            members.setdefault(group, []).append((reward, i))
    if not all(math.isfinite(reward) for group in members.values() for reward, _ in group):
        raise ValueError("rewards must be finite; leave the samples whose reward is not out of `counted`")
    pairs = []
    for _, group_members in sorted(members.items()):
        best = max(group_members, key=lambda member: member[0])
        worst = min(group_members, key=lambda member: member[0])
        if best[0] > worst[0]:
            pairs.append((best[1], worst[1]))
    indices = torch.tensor(pairs, dtype=torch.int64, device=rewards.device).reshape(-1, 2)
    return indices[:, 0], indices[:, 1]
