"""Megatron's optimizer of one role, stepped as :class:`stacx_core.backends.optimizer.RoleOptimizer` steps its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor

from stacx_core.backends.megatron.checkpoints import files
from stacx_core.backends.megatron.checkpoints.optimizer_state import OptimizerState
from stacx_core.backends.megatron.model import Stage
from stacx_core.backends.optimizer import learning_rate
from stacx_core.backends.writing import Writing
from stacx_core.knobs import Args
from stacx_core.planning.layout import Layout


def replicated(stage: Stage, layout: Layout) -> DistributedDataParallel:
    """The stage, with gradients that are summed in fp32 over its data- and context-parallel replicas."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=layout.distributed_optimizer
    )
    return DistributedDataParallel(stage.config, config, stage)


class MegatronOptimizer:
    """Steps this process's share of a model.

    Weight decay applies to every parameter, as with the torch backend; Megatron's own default spares biases and norms.

    Args:
        model: From :func:`replicated`.
        args: The resolved knobs.
    """

    def __init__(self, model: DistributedDataParallel, args: Args) -> None:
        self.args = args
        self.updates = 0
        self.model = model
        dtype = next(model.parameters()).dtype
        config = OptimizerConfig(
            optimizer="sgd" if args.optimizer == "sgd" else "adam",
            sgd_momentum=0.0,
            lr=args.lr,
            weight_decay=args.weight_decay,
            adam_beta1=args.adam_beta1,
            adam_beta2=args.adam_beta2,
            adam_eps=args.adam_eps,
            clip_grad=args.clip_grad,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=model.ddp_config.use_distributed_optimizer,
        )
        self._optimizer: Any = get_megatron_optimizer(config, [model], config_overrides={})

    def zero_grad(self) -> None:
        """Forget the accumulated gradients."""
        self.model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def gradient_norm(self) -> float:
        """The global L2 norm of the gradients accumulated on all processes, which this makes ready for :meth:`step`."""
        self._optimizer.prepare_grads()
        return float(self._optimizer.get_grad_norm())

    def step(self, gradient_norm: float, total_updates: int) -> float:
        """Clip, update the weights, count the update; returns the learning rate used."""
        lr = learning_rate(self.args, self.updates, total_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if self.args.clip_grad > 0:
            for optimizer in self._optimizer.chained_optimizers:
                clip_grad_by_total_norm_fp32(optimizer.get_parameters(), self.args.clip_grad, gradient_norm)
        self._optimizer.step_with_ready_grads()
        self.updates += 1
        return lr

    def kept(self) -> Iterator[Tensor]:
        """Moments and master weights of this process's share; the weights of an fp32 model are its own."""
        for optimizer in self._optimizer.chained_optimizers:
            if optimizer.is_stub_optimizer:
                continue
            yield from optimizer.get_parameters()
            for state in optimizer.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    def gradient_buffers(self) -> Iterator[Tensor]:
        """Those in which gradients are summed over the replicas."""
        yield from (buffer.grad_data for buffer in (*self.model.buffers, *self.model.expert_parallel_buffers))

    def save(self, folder: Path, background: bool) -> Writing:
        """Write the state as a sharded checkpoint that any layout can take up, together with the other processes."""
        parts = self._state(loading=False).parts() if self.updates else {}
        gathered = self.model.ddp_config.use_distributed_optimizer
        return files.save({"updates": self.updates, **parts}, folder, background, copies=gathered)

    def load(self, folder: Path) -> None:
        """Take up the state that :meth:`save` wrote, together with the other processes.

        Raises:
            CheckpointError: A file is missing or damaged, or the state is of another model.
        """
        self.updates = files.common(folder)["updates"]
        if self.updates:
            state = self._state(loading=True)
            state.restore(files.load(state.parts(), folder))

    def _state(self, loading: bool) -> OptimizerState:
        return OptimizerState(self.model.module, self._optimizer.chained_optimizers, self.updates, loading)
