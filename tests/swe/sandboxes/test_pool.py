"""Many episodes on few sandboxes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stacx_core.errors import ConfigError, SandboxError
from stacx_core.swe.sandboxes import SandboxPool
from stacx_core.swe.verifying import verify


def test_none_of_64_concurrent_episodes_is_lost(provider, make_task):
    task, size = make_task(), 6
    pool, lock, begun = SandboxPool(provider, size, [task]), threading.Lock(), threading.Barrier(64, timeout=60)
    held, most = 0, 0

    def episode(number: int) -> float:
        nonlocal held, most
        begun.wait()
        with pool.open(task) as sandbox:
            with lock:
                held += 1
                most = max(most, held)
            sandbox.run(f"sleep 60 & echo {number} > mine.txt", 60)
            assert sandbox.run("cat mine.txt; cp mine.txt score.txt", 60).output == f"{number}\n"
            reward = verify(sandbox, task).reward
            with lock:
                held -= 1
        return reward

    with ThreadPoolExecutor(64) as threads:
        rewards = list(threads.map(episode, range(64), timeout=300))
    assert rewards == [float(number) for number in range(64)]
    assert most <= size


def test_an_episode_that_fails_gives_its_place_back(provider, make_task):
    task = make_task()
    broken = make_task("broken", dockerfile="FROM x\nRUN exit 1\n")
    pool = SandboxPool(provider, 1, [task])
    for _ in range(2):
        with pytest.raises(Exception, match="RUN exit 1"), pool.open(broken):
            pass
        with pytest.raises(ZeroDivisionError), pool.open(task):
            raise ZeroDivisionError
    with pool.open(task) as sandbox:
        assert sandbox.run("echo in", 30).output == "in\n"


@pytest.mark.parametrize("size", [0, -1, 10_000])
def test_sizes_that_are_never_possible(provider, make_task, size):
    with pytest.raises(ConfigError, match=rf"a pool of {size} sandboxes is not possible: this machine holds at most"):
        SandboxPool(provider, size, [make_task()])


def test_a_task_that_is_never_possible(provider, make_task):
    with pytest.raises(ConfigError, match="at most 0 of task 'huge'"):
        SandboxPool(provider, None, [make_task(), make_task("huge", memory=9_999_999)])


def test_a_size_that_fits(provider, make_task):
    assert SandboxPool(provider, None, [make_task()]).size >= 1


def test_a_closed_pool_ends_what_is_done_in_its_sandboxes(provider, make_task, eventually, running):
    """One command runs, one environment is being built, one episode waits for a place: none is waited for."""
    task, slow = make_task(), make_task("slow", dockerfile="FROM x\nRUN sleep 4243.5\n")
    pool = SandboxPool(provider, 2, [task])

    def episode(task, command):
        with pool.open(task) as sandbox:
            sandbox.run(command, 600)

    with ThreadPoolExecutor(3) as threads:
        two = [threads.submit(episode, task, "sleep 4242.5"), threads.submit(episode, slow, "true")]
        eventually(lambda: running("sleep", "4242.5") and running("sleep", "4243.5"))
        third = threads.submit(episode, task, "true")
        pool.close()
        errors = [str(future.exception(timeout=20)) for future in (*two, third)]
    assert "during 'run'" in errors[0]
    assert errors[1:] == [
        "the sandbox of slow was ended before it was there",
        "no sandbox of sum is opened any more",
    ]
    assert not running("sleep", "4242.5")
    with pytest.raises(SandboxError, match="no sandbox of sum is opened any more"), pool.open(task):
        pass
