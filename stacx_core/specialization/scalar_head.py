"""Values of a role with a scalar head: a critic's per response token, a reward model's per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.objectives.log_probs import response_rows
from stacx_core.objectives.sharded import ShardedOutput
from stacx_core.objectives.values import values_at
from stacx_core.specialization.base import Specialization


class ScalarHeadSpecialization(Specialization):
    """Base of losses on values; ``compute_loss`` is the subclass's."""

    def response_values(self, model_output: Tensor | ShardedOutput, batch: Batch) -> Tensor:
        """The value of the state from which each response token was chosen.

        Args:
            model_output: ``[T, 1]``, one value per packed token.
            batch: The packed micro-batch.

        Returns:
            ``[N]`` over the response tokens of all samples in order, fp32 (fp64 for fp64 input), aligned with
            log-probs. Where the loss mask is 0 it is exactly 0 with zero gradient.
        """
        rows = response_rows(batch["total_lengths"], batch["response_lengths"]).to(model_output.device)
        kept = self.mask(batch).nonzero().squeeze(-1)
        values = values_at(model_output, rows[kept])
        return values.new_zeros(len(rows)).index_copy(0, kept, values)

    def last_token_values(self, model_output: Tensor | ShardedOutput, batch: Batch) -> Tensor:
        """The value at the last token of each sample: ``[B]``, fp32 (fp64 for fp64 input).

        Args:
            model_output: ``[T, 1]``, one value per packed token.
            batch: The packed micro-batch.
        """
        ends = torch.tensor(batch["total_lengths"], device=model_output.device).cumsum(0)
        return values_at(model_output, ends - 1)
