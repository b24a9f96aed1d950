"""The teacher of `self_distill`: a role that tells what the divergence needs, and follows the policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from stacx_core import CausalDecoderSpecialization, RoleHandle, SyncChannel
from stacx_core.objectives import likeliest_ids, token_log_probs


class TeacherSpecialization(CausalDecoderSpecialization):
    """Tells its likeliest tokens beside the log-probs of the sampled ones."""

    def tell(self, model_output: Tensor, targets: Tensor, keys: Collection[str]) -> dict[str, Tensor]:
        """``teacher_topk_ids`` ``[N, K]`` int32 and ``teacher_topk_log_probs`` ``[N, K]``, when they are wanted."""
        if "teacher_topk_ids" not in keys:
            return {}
        rows = torch.arange(len(model_output), device=model_output.device)
        ids = likeliest_ids(model_output, rows, self.args.distill_topk, self.args.log_probs_chunk_size)
        log_probs, _ = token_log_probs(model_output, ids, self.args.rollout_temperature, self.args.log_probs_chunk_size)
        return {"teacher_topk_ids": ids.int(), "teacher_topk_log_probs": log_probs}


class MovingAverage(SyncChannel):
    """Moves the teacher's weights towards the policy's: ``teacher = decay teacher + (1 - decay) policy``.

    Args:
        teacher: whose weights move, kept in fp32.
        policy: whose weights they follow.
        decay: what the teacher keeps of itself.
        interval: rollouts between two moves.
    """

    def __init__(self, teacher: RoleHandle, policy: RoleHandle, decay: float, interval: int) -> None:
        self.teacher = teacher
        self.policy = policy
        self.decay = decay
        self.interval = interval

    @torch.no_grad()
    def after_update(self, completed: int) -> None:
        """Move after every ``interval``-th rollout."""
        if completed % self.interval:
            return
        for theirs, ours in self._pairs():
            theirs.lerp_(ours.to(theirs.dtype), 1 - self.decay)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        followed = dict(self.policy.model.named_parameters())
        return ((theirs, followed[name]) for name, theirs in self.teacher.model.named_parameters())
