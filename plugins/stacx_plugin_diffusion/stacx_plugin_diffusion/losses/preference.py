"""Preferences between two samples: `flow_dpo`."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core import Batch
from stacx_core.objectives import Reducer, mean_over
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.objectives import Terms, flow_dpo_terms


class PairedErrors(FlowSpecialization):
    """Flow-DPO on each noise level of each pair; the loss of a pair is the mean over its levels."""

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """``[P K]`` terms, pair after pair; see the base class for the rest."""
        rows = _pair_rows(batch)
        order = torch.tensor([*rows[0], *rows[1]], device=velocity.device)
        noise, sigma = (self.stack(batch, key, fill) for key, fill in (("noises", 0.0), ("sigmas", 1.0)))
        x0 = noise - self.stack(batch, "targets")
        half = order[: len(rows[0])]
        return flow_dpo_terms(
            velocity[order],
            self.stack(batch, "ref_velocities")[order],
            x0[order],
            noise[half],
            sigma[half],
            beta=self.args.flow_dpo_beta,
            beta_scale=self.args.flow_dpo_beta_scale,
            sft_weight=self.args.flow_dpo_sft_coef,
        )

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum over pairs of their mean terms; a pair with an untrained side adds nothing."""
        terms, seen = self.terms(model_output, batch)
        rows = _pair_rows(batch)
        mask = self.mask(batch)
        live = mask[torch.tensor(rows[0], device=mask.device)] & mask[torch.tensor(rows[1], device=mask.device)]
        counts = torch.tensor(_counts(batch), device=mask.device, dtype=terms.dtype)
        loss = (torch.where(live, terms, 0.0) / counts).sum()
        return reducer(loss), {name: mean_over(values, live) for name, values in seen.items()}

    def waives(self) -> dict[str, str]:
        """Half of a pair's noise levels would weigh as much as all of them."""
        return {"siblings": "a pair is compared as a whole"}


def _pair_rows(batch: Batch) -> tuple[list[int], list[int]]:
    """Rows of the states of the chosen and of the rejected side, pair after pair."""
    starts = [0]
    for count in batch["response_lengths"]:
        starts.append(starts[-1] + count)
    sides: dict[int, dict[bool, int]] = {}
    for position, (pair, chosen) in enumerate(zip(batch["pair_ids"], batch["is_chosen"], strict=True)):
        sides.setdefault(pair, {})[bool(chosen)] = position
    rows: tuple[list[int], list[int]] = ([], [])
    for pair in sides.values():
        for side, listed in zip((True, False), rows, strict=True):
            listed.extend(range(starts[pair[side]], starts[pair[side] + 1]))
    return rows


def _counts(batch: Batch) -> list[int]:
    """For each pair and noise level, how many levels the pair has."""
    lengths = dict(zip(batch["pair_ids"], batch["response_lengths"], strict=True))
    return [count for count in lengths.values() for _ in range(count)]
