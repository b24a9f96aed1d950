"""The order of tasks, their seeds, and going on from a position."""

from __future__ import annotations

from typing import Any

import pytest

from stacx_core.errors import CheckpointError
from stacx_core.rollout.tasks import TaskStream, held_out_tasks, training_task

GAME = "textarena:GuessTheNumber-v0"


def test_training_and_held_out_tasks_never_share_a_seed(host_args: Any) -> None:
    args = host_args(eval_tasks=300)
    held_out = [task.seed for task in held_out_tasks(args)]
    training = [training_task(args, number, 0).seed for number in range(300)]
    assert {seed % 2 for seed in held_out} == {1}
    assert {seed % 2 for seed in training} == {0}
    assert len({*held_out, *training}) == 600
    assert all(0 <= seed < 2**31 for seed in (*held_out, *training))
    assert held_out != [task.seed for task in held_out_tasks(args.replace(seed=7))]


def test_tasks_are_new_or_come_round(host_args: Any) -> None:
    assert TaskStream(host_args(environment=GAME)).take(5) == [0, 1, 2, 3, 4]
    passes = TaskStream(host_args(environment=GAME, num_tasks=4))
    taken = [passes.take(2) for _ in range(4)]
    assert sorted(taken[0] + taken[1]) == sorted(taken[2] + taken[3]) == [0, 1, 2, 3]


def test_a_task_that_comes_twice_in_a_rollout_is_played_with_other_samples(host_args: Any) -> None:
    args = host_args(environment=GAME, num_tasks=2, n_samples_per_prompt=2)
    episodes = TaskStream(args).episodes(args, 4, {})
    assert len({(e.task, e.sample) for e in episodes}) == 8
    assert {e.sample for e in episodes} == {0, 1, 2, 3}


@pytest.mark.parametrize("num_tasks", [None, 3])
@pytest.mark.parametrize("taken", [0, 3, 4, 7])
def test_a_stream_goes_on_where_it_was(host_args: Any, num_tasks: int | None, taken: int) -> None:
    args = host_args(environment=GAME, num_tasks=num_tasks)
    first, second = TaskStream(args), TaskStream(args)
    first.take(taken)
    second.restore(first.state())
    assert second.state() == first.state()
    assert second.take(5) == first.take(5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_tasks": 4}, "--num-tasks was 3 and is 4"),
        ({"num_tasks": None}, "--num-tasks was 3 and is None"),
        ({"environment": "a:B", "seed": 7}, f"--environment was {GAME} and is a:B; --seed was 1234 and is 7"),
    ],
)
def test_a_stream_is_not_resumed_as_another(host_args: Any, changed: dict[str, Any], message: str) -> None:
    args = host_args(environment=GAME, num_tasks=3)
    with pytest.raises(CheckpointError, match=f"cannot resume with other tasks: {message}"):
        TaskStream(args.replace(**changed)).restore(TaskStream(args).state())
    with pytest.raises(CheckpointError, match=f"--environment was None and is {GAME}"):
        TaskStream(args).restore({"epoch": 0, "position": 0, "rows": 3})
