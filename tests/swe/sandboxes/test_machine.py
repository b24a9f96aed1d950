"""Memory limits of control groups."""

from __future__ import annotations

from stacx_core.swe.sandboxes.machine import machine_memory, memory_limits, processors


def test_the_second_version(tmp_path):
    group = tmp_path / "user.slice" / "run.scope"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("4096\n")
    (tmp_path / "memory.max").write_text("8192\n")
    assert min(memory_limits("0::/user.slice/run.scope\n", tmp_path)) == 4096


def test_the_first_version(tmp_path):
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "memory.limit_in_bytes").write_text("1024\n")
    assert min(memory_limits("5:memory:/a\n4:cpu:/b\n", tmp_path)) == 1024


def test_a_container_whose_group_is_the_root(tmp_path):
    (tmp_path / "memory.max").write_text("2048\n")
    assert min(memory_limits("0::/docker/abc\n", tmp_path)) == 2048


def test_this_machine():
    assert machine_memory() > 1 << 20
    assert processors()
