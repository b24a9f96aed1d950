"""Megatron-core's optimizer and checkpoints on this machine, and torch outside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from processes import spawn
from stacx_core.planning.layout import Layout
from tiny_models import make, micro_batches

pytest.importorskip("megatron.core")


def train(folder: str, saved: str) -> dict[str, Any]:
    """Two steps of the distributed optimizer with activations recomputed, then a checkpoint written and read."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from transformers import AutoConfig

    from stacx_core.backends.megatron import compat
    from stacx_core.backends.megatron.conversion.loading import load
    from stacx_core.backends.megatron.layout import initialize
    from stacx_core.backends.megatron.model import build, recompute_activations
    from stacx_core.backends.megatron.packing import pack

    layout = Layout()
    initialize(layout, seed=1)
    patched = torch.Tensor.type
    compat.install()
    config = AutoConfig.from_pretrained(folder)
    stage = build(config, layout, torch.float32)
    load(stage, config, layout, folder)
    recompute_activations(stage)
    model = DistributedDataParallel(stage.config, DistributedDataParallelConfig(use_distributed_optimizer=True), stage)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.01, use_distributed_optimizer=True), [model])
    losses = []
    for _ in range(2):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        logits = model(pack(micro_batches()[0], [5, 3, 9], layout, 0))
        loss = logits.logsumexp(-1).sum()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    dist_checkpointing.save(stage.sharded_state_dict(metadata=metadata), saved)
    other = build(config, layout, torch.float32)
    other.load_state_dict(dist_checkpointing.load(other.sharded_state_dict(metadata=metadata), saved))
    trained = dict(stage.named_parameters())
    return {
        "losses": losses,
        "patched once": torch.Tensor.type is patched,
        "type": torch.zeros(1).type(),
        "module": torch.empty(1, device="cpu").is_cuda,
        "read": all(value.equal(trained[name]) for name, value in other.named_parameters()),
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is nothing to make up for with CUDA")
def test_megatron_trains_and_saves_without_cuda(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    make("qwen3-tied", tmp_path / "model")
    (found,) = spawn(1, train, str(tmp_path / "model"), str(tmp_path / "saved"))
    first, second = found.pop("losses")
    assert second < first
    assert found == {"patched once": True, "type": "torch.FloatTensor", "module": False, "read": True}
