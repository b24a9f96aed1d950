"""What all losses on velocities share."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from stacx_core import Batch, RecipeError, Specialization
from stacx_core.objectives import Reducer, mean_over
from stacx_plugin_diffusion.objectives import Terms


class FlowSpecialization(Specialization):
    """A loss with one term for each state of a sample."""

    guided: ClassVar[bool] = True
    """Whether it is given velocities with the guidance of the run."""

    by_step: ClassVar[tuple[str, ...]] = ()
    """Of the values it reports, those that are reported for each denoising step too."""

    @abstractmethod
    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """``[N]`` terms of the ``[N, *D]`` velocities, and ``[N]`` values to report the means of."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The reduced terms, and the mean of each value over the states that are trained."""
        terms, seen = self.terms(model_output, batch)
        mask = self.mask(batch)
        metrics = {name: mean_over(values, mask) for name, values in seen.items()}
        if self.by_step:
            steps = torch.cat(list(batch["steps"]))
            for step in steps.unique().tolist():
                here = mask & (steps == step)
                metrics |= {f"{name}_step_{step}": mean_over(seen[name], here) for name in self.by_step if name in seen}
        return reducer(terms), metrics

    def log_probs(self, velocity: Tensor, batch: Batch) -> Tensor:
        """``[N]`` log-probs of the steps from the states.

        Raises:
            RecipeError: The loss knows no steps.
        """
        raise RecipeError(f"{type(self).__name__} tells no log-probs: its states are no noisy steps")

    def stack(self, batch: Batch, key: str, fill: float = 0.0) -> Tensor:
        """``[N, ...]``: the entries of all samples in a row; ``fill`` at the states that are not trained."""
        values = torch.cat(list(batch[key]))
        mask = self.mask(batch).view(-1, *[1] * (values.dim() - 1))
        return torch.where(mask, values, fill)
