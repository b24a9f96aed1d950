"""Who takes each turn of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core import Args, EpisodeTask, Executor
from stacx_plugin_dagger.schedules import BetaSchedule, coin, draw_kappa, kappa_limit


@dataclass(frozen=True)
class Driver:
    """Names the executor of every turn of one rollout; the same in every process.

    Args:
        args: the knobs of the section ``dagger``, and ``seed``.
        rollout: number of the rollout, the iteration of the schedules.
    """

    args: Args
    rollout: int

    def __call__(self, task: EpisodeTask, turn: int) -> Executor:
        """Who acts in turn ``turn``, counted from 0, of an episode."""
        mode = self.args.dagger_sampling_mode
        if mode == "beta":
            tossed = coin(self.seed, task.task_id, task.sample, self.rollout, turn)
            return "teacher" if tossed < self.beta else "student"
        if mode == "aggrevate":
            return "student" if turn < self.kappa(task) else "teacher"
        return "student" if mode == "student" else "teacher"

    @property
    def beta(self) -> float:
        """The teacher's share of turns, of the mode ``beta``."""
        return BetaSchedule.of(self.args).at(self.rollout)

    @property
    def kappa_limit(self) -> int:
        """The latest turn of the takeover, of the mode ``aggrevate``."""
        args = self.args
        return kappa_limit(self.rollout, args.aggrevate_start, args.aggrevate_step, args.aggrevate_cap)

    def kappa(self, task: EpisodeTask) -> int:
        """The turn from which the teacher plays an episode, of the mode ``aggrevate``."""
        sample = task.sample if self.args.aggrevate_per == "sample" else None
        return draw_kappa(self.seed, task.task_id, self.rollout, self.kappa_limit, sample)

    @property
    def seed(self) -> int:
        """Of every draw."""
        return int(self.args.get("dagger_seed", self.args.seed))
