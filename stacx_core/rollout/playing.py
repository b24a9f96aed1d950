"""What plays episodes, and who acts in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from stacx_core.rollout.engine import RolloutEngine, SamplingParams
from stacx_core.rollout.episodes import Episode, EpisodeTask, Executor
from stacx_core.rollout.teachers.protocol import Actor

Who = Callable[[EpisodeTask, int], Executor]
"""Who acts in a turn of an episode, counted from 0."""


def student_only(task: EpisodeTask, turn: int) -> Executor:
    """The policy plays by itself."""
    return "student"


class RunsEpisodes(ABC):
    """Plays episodes to their end, whoever calls the actors:
    :class:`stacx_core.rollout.episode_runner.EpisodeRunner`, or a harness."""

    def run(
        self,
        tasks: Sequence[EpisodeTask],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> list[Episode]:
        """One episode per task, in order; the arguments are those of :meth:`play`."""
        played = dict(self.play(tasks, engine, teacher, who, params, rollout))
        return [played[place] for place in range(len(tasks))]

    @abstractmethod
    def play(
        self,
        tasks: Sequence[EpisodeTask],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> Iterator[tuple[int, Episode]]:
        """The episodes as they end, each with the place of its task.

        Args:
            tasks: What to play.
            engine: Acts for the student; None where ``who`` never names it.
            teacher: Acts for the teacher; None where ``who`` never names it.
            who: Names the actor of each turn.
            params: Of both actors. A turn has the seed ``("turn", rollout, task, sample, turn)``.
            rollout: Number of the rollout; also the version of the weights.

        Raises:
            ValueError: ``who`` names a student or a teacher and there is none.
        """

    @abstractmethod
    def stop(self) -> None:
        """Break off what is played, from another thread, as far as that can be done; nothing more is played then."""
