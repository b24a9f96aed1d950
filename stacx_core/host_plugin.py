"""The host's own plugin: it registers `sft` and runs a role's specialization, through everybody's hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from stacx_core.data.batch import Batch
    from stacx_core.specialization.base import Specialization


@hookimpl
def register_recipes() -> list[TrainingConfig]:
    """The one recipe that needs no plugin: supervised fine-tuning on prompts with given responses."""
    policy = ModelRole(
        name="policy",
        specialization_cls="stacx_core.specialization.causal_decoder:CausalDecoderSpecialization",
        sync_to_rollout=True,
        reads={"tokens": (), "response_lengths": (), "loss_masks": ()},
    )
    sft = TrainingConfig(
        name="sft",
        roles=(policy,),
        description="Supervised fine-tuning: cross-entropy on the responses of a data set",
        family="host",
        requires=("hf_checkpoint", "prompt_data"),
        rollout="stacx_core.rollout.dataset:DatasetRollout",
    )
    return [sft]


@hookimpl(trylast=True)
def compute_loss(
    specialization: Specialization,
    model_output: torch.Tensor,
    batch: Batch,
    reducer: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Leave the loss to the role's specialization; any plugin that returns one comes first."""
    return specialization.compute_loss(model_output, batch, reducer)
