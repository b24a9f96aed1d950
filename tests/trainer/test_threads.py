"""How many threads a run takes when it is not told."""

from __future__ import annotations

import os

import pytest

from stacx_core.trainer.factory import free_cores


@pytest.mark.parametrize(
    ("told", "threads"),
    [("1", 1), ("100000", os.cpu_count()), ("0", None), ("many", None)],
)
def test_the_environment_is_followed_up_to_the_cpus(
    monkeypatch: pytest.MonkeyPatch, told: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert free_cores() == (threads or max(len(os.sched_getaffinity(0)) // 2, 1))
