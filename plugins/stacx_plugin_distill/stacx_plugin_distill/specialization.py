"""The student's loss: a divergence from the teacher on the tokens that the student wrote."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stacx_core import Args, Batch, CausalDecoderSpecialization
from stacx_core.objectives import Reducer, likeliest_ids, response_rows, token_log_probs
from stacx_plugin_distill.knobs import over_support
from stacx_plugin_distill.objectives import (
    Support,
    generalized_jsd,
    renormalized_kl,
    sampled_divergence,
    tail_kl,
    truncated_kl,
    union_support,
)

TAILS: dict[str, Callable[[Tensor, Support], Tensor]] = {
    "tail": tail_kl,
    "none": truncated_kl,
    "renorm": renormalized_kl,
}
"""Divergence by its name in ``--distill-tail``."""


class DistillSpecialization(CausalDecoderSpecialization):
    """On-policy distillation; ``--distill-kl-mode`` picks the divergence.

    ``k3_sample``, ``k2`` and ``k3_is`` estimate it from the sampled token, see
    ``stacx_plugin_distill.objectives.sampled``, which states the gradient of each. ``topk`` and ``gkd`` take it over
    the likeliest tokens of teacher and student, see ``stacx_plugin_distill.objectives.topk``; their gradient is that
    of their value. Student and teacher are compared at the sampling temperature.

    Over a support the student's log-probs of ``M <= 2 K`` tokens per trained position are computed chunk by chunk;
    beside the logits and their gradient nothing of their size is held.
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics, means over trained tokens: ``reverse_kl``, student minus teacher log-prob of the sampled token (k1);
        ``distill_clamp_frac``, where the clamp holds the loss and nothing is learnt (``k3_sample``, ``k3_is``);
        ``topk_missing_frac``, the share of the student's likeliest tokens that the teacher did not tell (``topk`` and
        ``gkd`` with ``--distill-missing floor``).
        """
        if over_support(self.args):
            return self._over_support(model_output, batch, reducer)
        mode = self.args.distill_kl_mode
        log_probs, _ = self.response_log_probs(model_output, batch)
        teacher = self.flat(batch, "teacher_log_probs")
        old = self.flat(batch, "log_probs") if mode == "k3_is" and "log_probs" in batch else None
        per_token, held = sampled_divergence(log_probs, teacher, mode, old)
        metrics = {"reverse_kl": self.mean_pair(log_probs - teacher, batch)}
        if mode != "k2":
            metrics["distill_clamp_frac"] = self.mean_pair(held, batch)
        return reducer(per_token), metrics

    def _over_support(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        args, kept = self.args, self.mask(batch).nonzero().squeeze(-1)
        rows = response_rows(batch["total_lengths"], batch["response_lengths"]).to(model_output.device)[kept]
        support = self._support(model_output, rows, batch, kept)
        targets = torch.cat([batch["tokens"][0, rows + 1, None], support.ids], dim=-1)
        log_probs, _ = token_log_probs(
            model_output, targets, args.rollout_temperature, args.log_probs_chunk_size, rows=rows
        )
        sampled = log_probs[:, 0].detach()
        per_token = divergence(args)(log_probs[:, 1:], support)
        metrics = {
            "reverse_kl": self._spread(sampled, kept, batch) - self.flat(batch, "teacher_log_probs"),
            "topk_missing_frac": self._spread(support.missing, kept, batch),
        }
        if args.distill_missing != "floor":
            del metrics["topk_missing_frac"]
        means = {name: self.mean_pair(values, batch) for name, values in metrics.items()}
        return reducer(self._spread(per_token, kept, batch)), means

    def _support(self, model_output: Tensor, rows: Tensor, batch: Batch, kept: Tensor) -> Support:
        """Which tokens are compared at each trained position."""
        student_ids = None
        if self.args.distill_missing == "floor":
            student_ids = likeliest_ids(model_output, rows, self.args.distill_topk, self.args.log_probs_chunk_size)
        told = torch.cat(list(batch["teacher_topk_log_probs"]))[kept]
        ids = torch.cat(list(batch["teacher_topk_ids"]))[kept]
        return union_support(ids, told, model_output.shape[1], student_ids)

    def _spread(self, values: Tensor, kept: Tensor, batch: Batch) -> Tensor:
        """``[N]`` over all response tokens: the values at the trained ones, 0 elsewhere."""
        return values.new_zeros(sum(batch["response_lengths"])).index_copy(0, kept, values)


def divergence(args: Args) -> Callable[[Tensor, Support], Tensor]:
    """The divergence over a support that the arguments ask for."""
    if args.distill_kl_mode == "gkd":
        return lambda log_probs, support: generalized_jsd(log_probs, support, args.distill_jsd_beta)
    return TAILS[args.distill_tail]
