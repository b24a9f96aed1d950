"""REINFORCE (Williams, 1992): loss = -A log pi(token), with A = reward minus the mean reward of the batch.

No ratio, no clipping, no reference model. A whole algorithm package: this module and a pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from stacx_core import Args, Knob, ModelRole, TrainingConfig, recipe

if TYPE_CHECKING:
    from torch import Tensor

    from stacx_core import Batch, CausalDecoderSpecialization


@recipe("reinforce")
def reinforce() -> TrainingConfig:
    """One trained model whose weights the rollout engine samples from."""
    policy = ModelRole(
        name="policy",
        specialization_cls=f"{__name__}:ReinforceSpecialization",
        sync_to_rollout=True,
        reads={"rewards": (), "advantages": ()},
        prepare=(f"{__name__}:compute_advantages",),
    )
    baseline = Knob(
        name="reinforce_baseline",
        type=str,
        default="batch_mean",
        help="What is subtracted from the rewards.",
        section="reinforce",
        choices=("batch_mean", "none"),
    )
    return TrainingConfig(
        name="reinforce",
        roles=(policy,),
        description="REINFORCE with a batch-mean baseline",
        family="policy-gradient",
        requires=("hf_checkpoint", "prompt_data", "rm_type"),
        knobs=(baseline,),
    )


def compute_advantages(batch: Batch, args: Args) -> dict[str, float]:
    """Add `advantages`, per sample [R] float32, from the rewards of the whole batch, before it is split."""
    import torch

    columns = zip(batch["rollout_ids"], batch["rewards"], batch["removed"], strict=True)
    rewards = {rollout: reward for rollout, reward, removed in columns if not removed}
    mean = sum(rewards.values()) / max(len(rewards), 1)
    baseline = mean if args.reinforce_baseline == "batch_mean" else 0.0
    batch["advantages"] = [
        torch.full((length,), reward - baseline)
        for reward, length in zip(batch["rewards"], batch["response_lengths"], strict=True)
    ]
    return {"reward_mean": mean}


@cache
def specialization() -> type[CausalDecoderSpecialization]:
    """Build the loss class. Only training needs it, so that listing recipes never imports torch."""
    from stacx_core import CausalDecoderSpecialization

    class ReinforceSpecialization(CausalDecoderSpecialization):
        """The REINFORCE loss of one micro-batch."""

        def compute_loss(
            self, model_output: Tensor, batch: Batch, reducer: Callable[[Tensor], Tensor]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            """Return the 0-d loss and metrics; `model_output` is [T, V], per-token values are [N]."""
            log_probs, _ = self.response_log_probs(model_output, batch)
            per_token = -self.flat(batch, "advantages") * log_probs
            loss = reducer(per_token)
            return loss, {"reinforce_loss": loss.detach()}

    return ReinforceSpecialization


def __getattr__(name: str) -> Any:
    if name == "ReinforceSpecialization":
        return specialization()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
