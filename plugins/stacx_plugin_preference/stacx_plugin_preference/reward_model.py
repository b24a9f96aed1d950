"""The loss of `reward_model`: a scalar head learns which of two responses people prefer."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core import Batch, ScalarHeadSpecialization
from stacx_core.objectives import Reducer, mean_over
from stacx_plugin_preference.comparison import find_pairs
from stacx_plugin_preference.objectives import bradley_terry_loss, preferred
from stacx_plugin_preference.rows import MARGIN


class RewardModelSpecialization(ScalarHeadSpecialization):
    """Bradley-Terry on the rewards of whole responses, each read at its last token.

    The losses of pairs are summed over the micro-batch; the trainer divides by the number of pairs in the step.
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics, means over pairs: ``rewards_chosen`` and ``rewards_rejected``; ``margin``, their difference;
        ``accuracy``, the share in which the chosen one is the higher, ties half; ``dropped_pairs``, the share of
        pairs with a side that is not trained on, which add nothing.
        """
        rewards, pairs = self.last_token_values(model_output, batch), find_pairs(batch)
        chosen, rejected = rewards[pairs.chosen], rewards[pairs.rejected]
        wanted = rewards.new_tensor([notes.get(MARGIN, 0.0) for notes in batch["metadata"]])[pairs.chosen]
        losses = bradley_terry_loss(chosen, rejected, wanted, self.args.rm_center_coef)
        return reducer(torch.where(pairs.live, losses, 0.0).sum()), {
            "rewards_chosen": mean_over(chosen, pairs.live),
            "rewards_rejected": mean_over(rejected, pairs.live),
            "margin": mean_over(chosen - rejected, pairs.live),
            "accuracy": mean_over(preferred(chosen - rejected), pairs.live),
            "dropped_pairs": mean_over(~pairs.live, torch.ones_like(pairs.live)),
        }
