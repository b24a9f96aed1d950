"""The student's loss of the two mixtures."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core import Batch, CausalDecoderSpecialization
from stacx_core.objectives import Reducer, mean_over
from stacx_plugin_dagger.objectives import mixed_loss, written_by_teacher


class MixedLossDaggerOPDSpecialization(CausalDecoderSpecialization):
    """Cross-entropy on the teacher's tokens and K3 on the student's, routed by ``teacher_log_probs``.

    Both kinds of token go into one reduction, so their balance follows who wrote how much. All tokens the teacher's
    is `sft`, none of them is on-policy distillation with ``k3_sample``.
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics: ``ce_mean`` and ``k3_mean``, unweighted means over the teacher's and over the student's trained
        tokens, left out in a step that has none of them; ``teacher_action_frac``, the teacher's share of the tokens.

        Raises:
            BatchError: ``teacher_log_probs`` holds something that is neither log-prob nor sentinel.
        """
        mask, teacher = self.mask(batch), self.flat(batch, "teacher_log_probs")
        by_teacher = written_by_teacher(teacher)
        log_probs = self._log_probs(model_output, batch, by_teacher)
        losses = mixed_loss(log_probs, teacher, by_teacher)
        weights = torch.where(by_teacher, self.args.mix_ce_weight, self.args.mix_k3_weight)
        return reducer(weights * losses), {
            "ce_mean": mean_over(losses, by_teacher),
            "k3_mean": mean_over(losses, mask & ~by_teacher),
            "teacher_action_frac": mean_over(by_teacher.float(), mask),
        }

    def _log_probs(self, model_output: Tensor, batch: Batch, by_teacher: Tensor) -> Tensor:
        """``[N]``: at temperature 1 of what is imitated, at the sampling temperature of what was sampled."""
        if self.args.rollout_temperature == 1:
            return self.response_log_probs(model_output, batch)[0]
        lengths = list(batch["response_lengths"])
        imitated = [m * t for m, t in zip(batch["loss_masks"], by_teacher.split(lengths), strict=True)]
        sampled = [m * ~t for m, t in zip(batch["loss_masks"], by_teacher.split(lengths), strict=True)]
        first, _ = self.response_log_probs(model_output, {**batch, "loss_masks": imitated}, temperature=1.0)
        return first + self.response_log_probs(model_output, {**batch, "loss_masks": sampled})[0]
