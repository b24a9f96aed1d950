"""The self-check on a run's own batch, through the trainer that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import Batch, CausalDecoderSpecialization, ModelRole, RecipeError, TrainingConfig
from stacx_core.trainer.factory import create_trainer
from stacx_core.trainer.plan import complete


class MeanOfMeans(CausalDecoderSpecialization):
    """Divides by the tokens of its micro-batch: the mistake that the check is for."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Any) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs, _ = self.response_log_probs(model_output, batch)
        return -log_probs.sum() / self.mask(batch).sum(), {}


def config(loss: type) -> TrainingConfig:
    return TrainingConfig(
        "checked",
        roles=(ModelRole("policy", loss, sync_to_rollout=True),),
        rollout="stacx_core.rollout.dataset:DatasetRollout",
    )


@pytest.fixture
def trainer(checkpoint: Path, sums: Path, host_args: Any, tmp_path: Path) -> Any:
    def build(loss: type, **given: Any) -> Any:
        files = {"hf_checkpoint": str(checkpoint), "prompt_data": str(sums), "output_dir": str(tmp_path / "run")}
        run = {"label_key": "label", "rollout_batch_size": 4, "num_rollout": 2, "lr": 1e-3}
        args = complete(config(loss), host_args(**{**files, **run, "check_loss_invariance": True, **given}))
        return create_trainer(config(loss), args)

    return build


def test_a_mean_of_means_stops_before_any_update(trainer: Any) -> None:
    run = trainer(MeanOfMeans)
    before = [p.clone() for p in run.parts.learner.workers["policy"].model.parameters()]
    with pytest.raises(RecipeError, match=r"role 'policy': the gradient depends on the micro-batches: cut one by one"):
        run.train()
    assert all(map(torch.equal, before, run.parts.learner.workers["policy"].model.parameters()))


def test_a_sound_loss_trains_as_without_the_check(trainer: Any, metrics: Any, tmp_path: Path) -> None:
    trainer(CausalDecoderSpecialization).train()
    trainer(CausalDecoderSpecialization, output_dir=str(tmp_path / "plain"), check_loss_invariance=False).train()
    assert metrics(tmp_path / "run") == metrics(tmp_path / "plain")
