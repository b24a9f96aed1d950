"""Roles whose weights follow those of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from stacx_core import Args, RoleHandle, SyncChannel, TrainingConfig
from stacx_plugin_diffusion.objectives import old_policy_decay


class Following(SyncChannel):
    """``theta <- d theta + (1 - d) theta_policy`` after every update, for the weights that are trained.

    Args:
        policy, follower: Two models of one architecture.
        decay: d after so many rollouts.
    """

    def __init__(self, policy: nn.Module, follower: nn.Module, decay: Callable[[int], float]) -> None:
        self.decay = decay
        theirs = dict(follower.named_parameters())
        self.pairs: list[tuple[Tensor, Tensor]] = [
            (theirs[name], parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad
        ]

    @torch.no_grad()
    def after_update(self, completed: int) -> None:
        """See :class:`stacx_core.SyncChannel`."""
        kept = self.decay(completed)
        for mine, policys in self.pairs:
            mine.lerp_(policys.to(mine.dtype), 1 - kept)


def channels(config: TrainingConfig, args: Args, roles: Mapping[str, RoleHandle]) -> list[SyncChannel]:
    """Those of a recipe: the average of ``--ema-decay``, or the old policy of `diffusion_nft`."""
    if "old" in roles and "old_decay" in args:
        updates = args.num_steps_per_rollout * args.epochs_per_rollout
        return [
            Following(
                roles["policy"].model, roles["old"].model, lambda done: old_policy_decay(args.old_decay, done * updates)
            )
        ]
    if "average" in roles:
        return [Following(roles["policy"].model, roles["average"].model, lambda _: float(args.ema_decay))]
    return []
