"""The two ends of the mixtures of imitation and distillation, against the recipes they meet there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core.knobs import Args
from stacx_core.objectives import make_reducer
from stacx_core.specialization import CausalDecoderSpecialization, Specialization
from stacx_plugin_dagger.specialization import MixedLossDaggerOPDSpecialization
from stacx_plugin_distill.specialization import DistillSpecialization

VOCABULARY, TOTALS, RESPONSES = 11, [7, 9, 5], [4, 6, 1]
TEMPERATURES = [1.0, 0.7]


def arguments(temperature: float) -> Args:
    return Args.of(
        rollout_temperature=temperature,
        log_probs_chunk_size=3,
        mix_ce_weight=1.0,
        mix_k3_weight=1.0,
        distill_kl_mode="k3_sample",
    )


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    """Three packed samples with an environment's token and a gap at the end."""
    generator = torch.Generator().manual_seed(3)
    masks = [[1, 1, 0, 1], [1, 0, 0, 1, 1, 0], [1]]
    return {
        "tokens": torch.randint(VOCABULARY, (1, sum(TOTALS)), generator=generator),
        "total_lengths": TOTALS,
        "response_lengths": RESPONSES,
        "loss_masks": [torch.tensor(mask, dtype=torch.int32) for mask in masks],
        "teacher_log_probs": [-3 * torch.rand(count, generator=generator) for count in RESPONSES],
    }


def loss_and_gradient(specialization: Specialization, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    logits = torch.randn(sum(TOTALS), VOCABULARY, generator=torch.Generator().manual_seed(4)).requires_grad_()
    reducer = make_reducer("sample_mean", batch["response_lengths"], batch["loss_masks"])
    loss, _ = specialization.compute_loss(logits, batch, reducer)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_it_is_fine_tuning_where_the_teacher_wrote_everything(batch: dict[str, Any], temperature: float) -> None:
    args = arguments(temperature)
    written = {**batch, "teacher_log_probs": [torch.ones(count) for count in RESPONSES]}
    mixed = loss_and_gradient(MixedLossDaggerOPDSpecialization(args), written)
    tuned = loss_and_gradient(CausalDecoderSpecialization(args), written)
    assert torch.equal(mixed[0], tuned[0])
    assert torch.equal(mixed[1], tuned[1])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_it_is_on_policy_distillation_where_the_teacher_wrote_nothing(
    batch: dict[str, Any], temperature: float
) -> None:
    args = arguments(temperature)
    mixed = loss_and_gradient(MixedLossDaggerOPDSpecialization(args), batch)
    distilled = loss_and_gradient(DistillSpecialization(args), batch)
    assert torch.allclose(mixed[0], distilled[0], rtol=1e-6)
    assert torch.allclose(mixed[1], distilled[1], rtol=1e-5, atol=1e-8)
