"""Forward and backward passes through the pipeline, and what its last stages tell all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

T = TypeVar("T")
R = TypeVar("R")
Forward = Callable[[T], tuple[Tensor, Callable[[Tensor], Tensor]]]
"""Of one micro-batch: this stage's output, and what makes the micro-batch's loss of the last stage's."""


def run_pipeline(model: nn.Module, config: Any, parts: Sequence[T], forward: Forward[T]) -> None:
    """Run every micro-batch through the pipeline, and back unless gradients are off.

    The gradient is the sum over micro-batches, and over data- and context-parallel replicas, of their losses' as they
    are; Megatron would average it.

    Args:
        model: The stage, or what wraps it.
        config: Megatron's, of the stage.
        parts: The micro-batches, of which every process makes as many.
        forward: See :data:`Forward`.
    """

    def step(remaining: Iterator[T], _: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        output, finish = forward(next(remaining))
        return output, lambda output: (finish(output), torch.ones((), dtype=torch.int), {})

    config.finalize_model_grads_func = lambda model, _=None, **options: finalize_model_grads(model, None, **options)
    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(parts),
        model=[model],
        num_microbatches=len(parts),
        seq_length=1,
        micro_batch_size=1,
        forward_only=not torch.is_grad_enabled(),
    )


def told_by_last_stages(value: R) -> list[R]:
    """What the last stage of each data-parallel replica has for ``value``, on every process."""
    parts: list[Any] = [None] * parallel_state.get_data_parallel_world_size()
    if parallel_state.is_pipeline_last_stage():
        dist.all_gather_object(parts, value, group=parallel_state.get_data_parallel_group())
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        dist.broadcast_object_list(parts, last, group=parallel_state.get_pipeline_model_parallel_group())
    return parts
