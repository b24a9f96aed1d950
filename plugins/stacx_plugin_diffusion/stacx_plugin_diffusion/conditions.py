"""What the network is told of prompts: a dictionary of tensors for each sample, stacked for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stacx_plugin_diffusion.models import FlowModel
from stacx_plugin_diffusion.objectives import merge_cfg

Condition = Mapping[str, Tensor]


def stacked(conditions: Sequence[Condition], device: torch.device) -> dict[str, Tensor]:
    """``[N, ...]`` of N conditions; texts of different lengths are padded with zeros at their end."""
    names = conditions[0].keys()
    return {name: _padded([condition[name] for condition in conditions]).to(device) for name in names}


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(list(tensors))
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)


class GuidedModel:
    """A flow model with classifier-free guidance.

    Args:
        model: Predicts velocities.
        scale: Of the guidance; 1 for none.

    Raises:
        ModelError: Guidance needs the null prompt, and the model has none.
    """

    def __init__(self, model: FlowModel, scale: float) -> None:
        self.model, self.scale = model, scale
        self._null: list[Condition] = list(model.encode([""])) if scale > 1 else []

    def velocity(self, x: Tensor, sigma: Tensor, conditions: Sequence[Condition]) -> Tensor:
        """``[N, *D]`` fp32 at N states, each with its condition.

        Args:
            x: ``[N, *D]``.
            sigma: ``[N]``.
            conditions: N of them.
        """
        known = self.model.predict_velocity(x, sigma, stacked(conditions, x.device))
        if not self._null:
            return known
        with torch.no_grad():
            blank = self.model.predict_velocity(x, sigma, stacked(self._null * len(x), x.device))
        return merge_cfg(known, blank, self.scale)
