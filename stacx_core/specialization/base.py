"""The base class of every specialization."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

import torch
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.knobs import Args
from stacx_core.objectives.aggregation import Reducer, mean_over, where_masked


class Specialization(ABC):
    """Turns a model's output on a micro-batch into a loss.

    N counts the positions of the micro-batch's responses: their tokens, or whatever the recipe's modality has there.

    Args:
        args: The resolved knobs of the run.
    """

    def __init__(self, args: Args) -> None:
        self.args = args

    @abstractmethod
    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics.

        Args:
            model_output: ``[T, V]`` logits of the packed micro-batch, or ``[T, 1]`` values of a scalar head. Where
                processes share it, it is no tensor but a :class:`stacx_core.objectives.ShardedOutput`: of it take
                ``shape``, ``device``, ``dtype`` and ``len``, and all else by the helpers of the specializations and
                the functions of ``stacx_core.objectives``, whose results are whole and equal on every process. Of
                another modality than language what the ``output`` of its worker gives.
            batch: The micro-batch as the worker collates it.
            reducer: ``[N]`` values to the 0-d numerator of the run's aggregation; 0-d passes through.

        Returns:
            A 0-d loss, not yet divided by the step's normalizer, and detached metrics: 0-d ones are numerators like
            the loss, ones of shape ``[2]`` are a sum and a count whose quotient is taken over the whole step.
        """

    def tell(self, model_output: Tensor, targets: Tensor, keys: Collection[str]) -> dict[str, Tensor]:
        """Batch keys that a frozen role computes for others and that are not its log-probs or values.

        Args:
            model_output: ``[N, V]`` logits that predict N response tokens, to be read as in `compute_loss`.
            targets: ``[N]`` int64, these tokens.
            keys: What is wanted.

        Returns:
            Per key ``[N, ...]``; what is wanted and not returned is taken to be the log-probs of the targets.
        """
        return {}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Metrics derived from a step's aggregated ones, such as a perplexity from a mean."""
        return metrics

    def waives(self) -> dict[str, str]:
        """Checks of ``stacx check`` that do not apply under these arguments, each with the reason, which is reported.

        For properties an objective rightly lacks: a ratio of whole sequences says here that ``siblings`` does not
        apply, because cutting a sequence in two changes it. Most checks cannot be waived.
        """
        return {}

    def mask(self, batch: Batch) -> Tensor:
        """``[N]`` bool: which positions are trained."""
        return torch.cat(list(batch["loss_masks"])).bool()

    def flat(self, batch: Batch, key: str) -> Tensor:
        """``[N]`` fp32: the per-sample vectors of ``key`` in a row, 0 where the loss mask is 0."""
        return where_masked(torch.cat(list(batch[key])), self.mask(batch))

    def mean_pair(self, values: Tensor, batch: Batch) -> Tensor:
        """``[2]`` fp64: sum over trained positions of the ``[N]`` values, and their number; detached."""
        return mean_over(values, self.mask(batch))
