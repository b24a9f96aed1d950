"""What the tests' helper does when a process fails."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist

from processes import ProcessError, spawn


def summed(value: int) -> float:
    total = torch.tensor(float(value + dist.get_rank()))
    dist.all_reduce(total)
    return float(total)


def second_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the first error")
    dist.barrier()


def second_dies() -> None:
    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()


def hang() -> None:
    threading.Event().wait()


def test_results_come_back_by_rank() -> None:
    assert spawn(2, summed, 3) == [7.0, 7.0]


def test_the_error_that_came_first_is_shown() -> None:
    with pytest.raises(ProcessError, match=r"(?s)rank 1 failed.*ValueError: the first error"):
        spawn(2, second_raises)


def test_a_process_that_dies_ends_the_others() -> None:
    with pytest.raises(ProcessError, match=r"rank \d failed"):
        spawn(2, second_dies)


def test_a_process_that_hangs_is_killed() -> None:
    with pytest.raises(ProcessError, match="rank 0 did not end in time"):
        spawn(2, hang, seconds=1)
