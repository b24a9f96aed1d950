"""The self-check on a run's own data: does the gradient depend on how a step is cut into micro-batches?"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from stacx_core.backends.optimizer import RoleOptimizer
from stacx_core.data.batch import Batch
from stacx_core.errors import RecipeError
from stacx_core.trainer.worker import RoleWorker

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest relative difference between two gradients that rounding explains, by the model's precision."""

CANCELLED = 0.1
"""Share of what the contributions to a gradient would add up to that counts as its size where they cancel."""

logger = logging.getLogger(__name__)


def check_loss_invariance(worker: RoleWorker, batch: Batch) -> dict[str, float]:
    """Compare the gradient of a batch cut as configured, cut finely, and cut finely in reverse order.

    A loss that averages over whatever shares its micro-batch gives another gradient for each. Contributions that
    cancel, as those of two equal responses, leave a gradient of nothing but their rounding, so that a difference is
    also measured against what they would add up to. The weights, and the gradient that a later step starts from, are
    left alone.

    Args:
        worker: The role to check.
        batch: A prepared batch of the run, taken as one optimizer step.

    Returns:
        Name of the other cut -> its relative difference in the gradient.

    Raises:
        RecipeError: A difference is above rounding, naming role, cut and difference.
    """
    atoms = [[position] for position in range(len(batch["response_lengths"]))]
    if "pair_ids" in batch:
        pairs: dict[int, list[int]] = {}
        for position, pair in enumerate(batch["pair_ids"]):
            pairs.setdefault(pair, []).append(position)
        atoms = list(pairs.values())
    whole = worker.micro_batches(batch)
    expected = _gradient(worker, batch, whole)
    scale = max(float(expected.norm()), CANCELLED * _uncancelled(worker, batch, whole), 1e-30)
    cuts = {"one by one": atoms, "two by two in reverse": _in_twos(atoms[::-1])}
    differences = {}
    for name, cut in cuts.items():
        gradient = _gradient(worker, batch, cut)
        differences[name] = float((gradient - expected).norm()) / scale
        if not differences[name] <= TOLERANCES[worker.dtype]:
            raise RecipeError(
                f"role {worker.role.name!r}: the gradient depends on the micro-batches: cut {name}, it differs by "
                f"{differences[name]:.2g} of its norm from the cut of this run",
                "compute_loss may use only what belongs to a sample; whole-batch statistics go into a prepare stage",
            )
    logger.info("role %r: the gradient is the same for three cuts, within %s", worker.role.name, differences)
    return differences


def _in_twos(atoms: list[list[int]]) -> list[list[int]]:
    return [[position for atom in atoms[i : i + 2] for position in atom] for i in range(0, len(atoms), 2)]


def _uncancelled(worker: RoleWorker, batch: Batch, cut: list[list[int]]) -> float:
    """Norm of the gradient with every derivative of the loss by the head's output made positive."""

    def positive(_: nn.Module, gradients: Any) -> Any:
        return tuple(part.abs() for part in gradients)

    hook = worker.output_layer.register_full_backward_pre_hook(positive)
    try:
        with warnings.catch_warnings():
            # The inputs of what is a whole model need no gradient.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            return float(_gradient(worker, batch, cut).norm())
    finally:
        hook.remove()


def _gradient(worker: RoleWorker, batch: Batch, cut: list[list[int]]) -> Tensor:
    """All gradients in one fp32 vector, without dropout; the optimizer is left without any."""
    assert isinstance(worker.optimizer, RoleOptimizer)
    worker.optimizer.zero_grad()
    worker.model.eval()
    worker.accumulate(batch, cut)
    gradient = worker.optimizer.gradient()
    worker.optimizer.zero_grad()
    return gradient
