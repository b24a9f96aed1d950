"""Cross-entropy on responses, and the helpers that every decoder loss builds on."""

from __future__ import annotations

import math

from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.objectives.aggregation import Reducer
from stacx_core.objectives.log_probs import response_token_log_probs
from stacx_core.objectives.sharded import ShardedOutput
from stacx_core.specialization.base import Specialization


class CausalDecoderSpecialization(Specialization):
    """Supervised fine-tuning: the mean negative log-likelihood of the trainable response tokens."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy at temperature 1, whatever the sampling temperature; see the base class for shapes."""
        log_probs, _ = self.response_log_probs(model_output, batch, temperature=1.0)
        loss = reducer(-log_probs)
        return loss, {"nll": self.mean_pair(-log_probs, batch)}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add the perplexity, the exponential of the token mean of the negative log-likelihood."""
        if "nll" not in metrics:
            return metrics
        return {**metrics, "ppl": math.exp(min(metrics["nll"], 700.0))}

    def response_log_probs(
        self,
        model_output: Tensor | ShardedOutput,
        batch: Batch,
        with_entropy: bool = False,
        temperature: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs, and if asked entropies, of the response tokens of a packed micro-batch.

        Args:
            model_output: ``[T, V]`` logits, any float dtype, whole or this process's part.
            batch: The packed micro-batch.
            with_entropy: Also compute the entropy of each predicting distribution.
            temperature: Divides the logits; unset takes the sampling temperature.

        Returns:
            Two fp32 vectors ``[N]`` over the response tokens of all samples in order; the second is ``None`` unless
            asked for. Masked positions are never computed: exactly 0 with zero gradient.
        """
        return response_token_log_probs(
            model_output,
            batch["tokens"],
            batch["total_lengths"],
            batch["response_lengths"],
            batch["loss_masks"],
            temperature=self.args.rollout_temperature if temperature is None else temperature,
            chunk_size=self.args.log_probs_chunk_size,
            with_entropy=with_entropy,
        )
