"""Which samples make up each optimiser step of a rollout phase."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stacx_core.errors import BatchError


def optimizer_steps(rollout_ids: Sequence[int], global_batch_size: int) -> tuple[list[list[int]], int]:
    """Group samples by rollout and cut the rollouts, in order of first appearance, into steps.

    Args:
        rollout_ids: per sample the rollout it belongs to; samples of one rollout always share a step.
        global_batch_size: rollouts per optimiser step, taken exactly.

    Returns:
        Sample positions per step, and the number of trailing rollouts that fill no step and are left out; the
        caller reports that number.

    Raises:
        BatchError: `global_batch_size` below 1.
    """
    if global_batch_size < 1:
        raise BatchError(f"global_batch_size is {global_batch_size}; it must be at least 1")
    members: dict[int, list[int]] = {}
    for position, rollout_id in enumerate(rollout_ids):
        members.setdefault(rollout_id, []).append(position)
    rollouts = list(members.values())
    whole = len(rollouts) - len(rollouts) % global_batch_size
    steps = [
        [position for rollout in rollouts[start : start + global_batch_size] for position in rollout]
        for start in range(0, whole, global_batch_size)
    ]
    return steps, len(rollouts) - whole


def rollout_steps(
    rollout_ids: Sequence[int], global_batch_size: int, num_steps: int, expected: int
) -> tuple[list[list[int]], int]:
    """The steps of one rollout: as many as were asked for, whether it brought fewer or more than it should.

    Args:
        rollout_ids: per sample the rollout it belongs to.
        global_batch_size: rollouts per step. Fewer rollouts than fill the steps, or more than expected, are shared out
            evenly instead.
        num_steps: steps wanted.
        expected: how many rollouts it should bring.

    Returns:
        As :func:`optimizer_steps`.

    Raises:
        BatchError: as :func:`optimizer_steps`.
    """
    count = len(set(rollout_ids))
    share = max(math.ceil(count / num_steps), 1)
    size = share if count > expected else min(global_batch_size, share)
    steps, dropped = optimizer_steps(rollout_ids, size)
    if dropped and len(steps) < num_steps:
        used = {position for step in steps for position in step}
        steps.append([position for position in range(len(rollout_ids)) if position not in used])
        dropped = 0
    return steps, dropped
