"""Which tasks of an environment are played: those of training in their order, and those held out."""

from __future__ import annotations

from typing import Any

from stacx_core.data.prompts import PromptStream
from stacx_core.errors import CheckpointError
from stacx_core.knobs import Args
from stacx_core.rollout.environments.loading import has_numbered_tasks, task_contents
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.seeds import sub_seed

_TRAINING, _HELD_OUT = 0, 1
"""Lowest bit of an environment's seed, so that no task is both trained on and held out."""


def training_task(args: Args, task: int, sample: int) -> EpisodeTask:
    """One episode of training task number ``task``; its samples share the environment's seed."""
    return EpisodeTask(task, sample, _seed(args, "train_task", task, _TRAINING), f"train/{task}")


def held_out_tasks(args: Args) -> list[EpisodeTask]:
    """The ``--eval-tasks`` held-out tasks, one episode of each."""
    seeds = [_seed(args, "eval_task", task, _HELD_OUT) for task in range(args.eval_tasks or 0)]
    return [EpisodeTask(task, 0, seed, f"eval/{task}") for task, seed in enumerate(seeds)]


def _seed(args: Args, name: str, task: int, lowest: int) -> int:
    number = task if has_numbered_tasks(args.environment) else sub_seed(args.seed, name, task) % 2**30
    return number * 2 + lowest


_ORDER = ("environment", "num_tasks", "seed", "rollout_shuffle")
"""Knobs that the tasks and their order follow from."""
_CONTENTS = "contents"


class TaskStream:
    """Numbers of the training tasks: ever new ones, or with ``--num-tasks`` passes over so many.

    Args:
        args: The run's; ``--rollout-shuffle`` orders each pass anew.
    """

    def __init__(self, args: Args) -> None:
        self._of = {name: getattr(args, name) for name in _ORDER} | {_CONTENTS: task_contents(args.environment)}
        self._taken = 0
        self._passes = self._first_pass()

    def _first_pass(self) -> PromptStream[int] | None:
        count = self._of["num_tasks"]
        if count is None:
            return None
        return PromptStream(range(count), seed=self._of["seed"], shuffle=self._of["rollout_shuffle"])

    def take(self, count: int) -> list[int]:
        """The next ``count`` task numbers."""
        first = self._taken
        self._taken += count
        return list(range(first, self._taken)) if self._passes is None else self._passes.take(count)

    def episodes(self, args: Args, count: int, taken: dict[int, int]) -> list[EpisodeTask]:
        """The episodes of the next ``count`` tasks, ``--n-samples-per-prompt`` of each.

        Args:
            args: The run's.
            count: Tasks.
            taken: Task number -> its episodes in this rollout so far; counted on, so that no two are alike.
        """
        tasks = []
        for task in self.take(count):
            first = taken.get(task, 0)
            taken[task] = first + args.n_samples_per_prompt
            tasks += [training_task(args, task, sample) for sample in range(first, taken[task])]
        return tasks

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {**self._of, "taken": self._taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: The tasks are others, or come in another order.
        """
        before = {_CONTENTS: "", **state}
        changes = [
            f"{_called(name)} was {before.get(name)} and is {now}"
            for name, now in self._of.items()
            if before.get(name) != now
        ]
        if changes:
            raise CheckpointError(
                f"cannot resume with other tasks: {'; '.join(changes)}",
                "or start a new run from the weights of the checkpoint, with --hf-checkpoint",
            )
        self._taken = state["taken"]
        self._passes = self._first_pass()
        if self._passes is not None:
            self._passes.take(self._taken)


def _called(name: str) -> str:
    return "the hash of the tasks' files" if name == _CONTENTS else f"--{name.replace('_', '-')}"
