"""The policy's loss of `dpo`: one number per pair, or per response for KTO."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stacx_core import Args, Batch, CausalDecoderSpecialization
from stacx_core.objectives import Reducer, mean_over
from stacx_plugin_preference.comparison import find_pairs, sample_sums, token_counts
from stacx_plugin_preference.knobs import WITH_REFERENCE
from stacx_plugin_preference.objectives import (
    hinge_loss,
    ipo_loss,
    kto_loss,
    orpo_loss,
    preferred,
    robust_loss,
    sigmoid_loss,
    simpo_loss,
)

PAIR_LOSSES: dict[str, Callable[[Tensor, Tensor, Args], Tensor]] = {
    "sigmoid": lambda c, r, args: sigmoid_loss(c - r, args.dpo_beta, args.dpo_label_smoothing),
    "robust": lambda c, r, args: robust_loss(c - r, args.dpo_beta, args.dpo_label_smoothing),
    "hinge": lambda c, r, args: hinge_loss(c - r, args.dpo_beta),
    "ipo": lambda c, r, args: ipo_loss(c - r, args.dpo_beta),
    "simpo": lambda c, r, args: simpo_loss(c - r, args.dpo_beta, args.simpo_gamma),
    "orpo": lambda c, r, args: orpo_loss(c, r, args.orpo_lambda),
}
"""Loss by its name in ``--dpo-loss-type``, of the evidence ``[P]`` for the chosen and for the rejected response."""


class PreferenceSpecialization(CausalDecoderSpecialization):
    """The DPO family; ``--dpo-loss-type`` picks the loss, ``stacx_plugin_preference.objectives`` has them.

    The evidence for a response is what its loss compares: the log-ratio ``S - R`` to the reference, its mean per
    token for ``ipo`` without ``--ipo-sum``, and the mean log-prob ``S / n`` for ``simpo`` and ``orpo``, which read
    no reference. Log-ratios are summed from the differences of tokens, not taken from two long sums.

    ``--dpo-sft-coef`` adds ``-S_c / n_c`` per pair. The losses are summed over the micro-batch; the trainer
    divides by the number of pairs in the step (of responses for ``kto``).
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics, means over pairs (over the responses of either kind for ``kto``): ``rewards_chosen`` and
        ``rewards_rejected``, the evidence times ``--dpo-beta`` (times 1 for ``orpo``); ``logps_chosen`` and
        ``logps_rejected``, the sums S; ``accuracy``, the share in which the chosen reward is the higher, ties half
        (for ``kto`` the share of responses on their side of the baseline); ``margin``, the difference of the
        rewards; ``dropped_pairs``, the share of pairs with a side that has no trained token, which add nothing.
        """
        log_probs, _ = self.response_log_probs(model_output, batch)
        sums, counts = sample_sums(log_probs, batch), token_counts(batch)
        if self.args.dpo_loss_type in WITH_REFERENCE:
            evidence = sample_sums(log_probs - self.flat(batch, "ref_log_probs"), batch)
        else:
            evidence = sums
        if self.args.dpo_loss_type in ("simpo", "orpo") or (self.args.dpo_loss_type == "ipo" and not self.args.ipo_sum):
            evidence = evidence / counts.clamp(min=1)
        if self.args.dpo_loss_type == "kto":
            losses, metrics = self._unpaired(evidence, sums, counts, batch)
        else:
            losses, metrics = self._paired(evidence, sums, counts, batch)
        return reducer(losses.sum()), metrics

    def waives(self) -> dict[str, str]:
        """Half a response has another evidence than the whole."""
        return {"siblings": "a response is judged as a whole"}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add the ``margin`` of ``kto``, whose chosen and rejected responses are not paired."""
        if "margin" in metrics or not {"rewards_chosen", "rewards_rejected"} <= set(metrics):
            return metrics
        return {**metrics, "margin": metrics["rewards_chosen"] - metrics["rewards_rejected"]}

    def _paired(self, evidence: Tensor, sums: Tensor, counts: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses ``[P]`` of pairs, and their metrics."""
        args, pairs = self.args, find_pairs(batch)
        chosen, rejected = evidence[pairs.chosen], evidence[pairs.rejected]
        losses = PAIR_LOSSES[args.dpo_loss_type](chosen, rejected, args)
        if args.dpo_sft_coef != 0:
            losses = losses - args.dpo_sft_coef * sums[pairs.chosen] / counts[pairs.chosen].clamp(min=1)
        scale = 1.0 if args.dpo_loss_type == "orpo" else args.dpo_beta
        margin = scale * (chosen - rejected)
        return torch.where(pairs.live, losses, 0.0), {
            "rewards_chosen": mean_over(scale * chosen, pairs.live),
            "rewards_rejected": mean_over(scale * rejected, pairs.live),
            "margin": mean_over(margin, pairs.live),
            "accuracy": mean_over(preferred(margin), pairs.live),
            "logps_chosen": mean_over(sums[pairs.chosen], pairs.live),
            "logps_rejected": mean_over(sums[pairs.rejected], pairs.live),
            "dropped_pairs": mean_over(~pairs.live, torch.ones_like(pairs.live)),
        }

    def _unpaired(
        self, log_ratio: Tensor, sums: Tensor, counts: Tensor, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses ``[B]`` of single responses, and their metrics."""
        args, live = self.args, counts > 0
        desirable = torch.tensor(batch["is_chosen"], dtype=torch.bool, device=log_ratio.device)
        baseline = log_ratio.new_tensor(batch["kto_baseline"])
        losses = kto_loss(
            log_ratio, desirable, baseline, args.dpo_beta, args.kto_desirable_weight, args.kto_undesirable_weight
        )
        above = preferred(log_ratio - baseline)
        return torch.where(live, losses, 0.0), {
            "rewards_chosen": mean_over(args.dpo_beta * log_ratio, live & desirable),
            "rewards_rejected": mean_over(args.dpo_beta * log_ratio, live & ~desirable),
            "accuracy": mean_over(torch.where(desirable, above, 1 - above), live),
            "logps_chosen": mean_over(sums, live & desirable),
            "logps_rejected": mean_over(sums, live & ~desirable),
        }
