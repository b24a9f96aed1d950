"""Episodes: what was played, turn by turn, and the samples that are trained on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

from stacx_core.data.sample import STUDENT, TEACHER, Sample, SampleStatus

Executor = Literal["student", "teacher"]
Outcome = Literal["done", "turn_limit", "context_overflow", "env_error", "env_timeout", "teacher_failed"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""How an episode ends: by the environment, at ``--max-turns`` or when a harness's time is up, where the context has no
room for another action, or because a call of the environment raised or took longer than ``--episode-timeout``, or
because a teacher did not act."""

FAILURES: tuple[Outcome, ...] = ("env_error", "env_timeout", "teacher_failed")
"""Outcomes that say nothing about the policy: such an episode is not trained on and has no vote in its group."""

EXECUTORS: dict[Executor, int] = {"student": STUDENT, "teacher": TEACHER}


@dataclass(frozen=True)
class EpisodeTask:
    """One episode to play.

    Args:
        task: Number of the task; equal numbers are the same task.
        sample: Which of the task's episodes.
        seed: Of the environment.
        task_id: The task's name in messages and logs.
    """

    task: int
    sample: int
    seed: int
    task_id: str


@dataclass
class Turn:
    """One action.

    Args:
        context: Ids in front of the action, as the engine saw them.
        observation: The text the actor saw.
        executor: Who acted.
        ids: The action as it was generated, its end-of-turn id included when there is one.
        log_probs: The engine's log-probs of the ids; 0.0 for those of a teacher.
        text: The action as the environment got it.
        cut: Whether the action was cut at the length limit.
        weight_versions: Labels of the weights behind the ids, where the student's engine has labels.
        reported_tokens: How many tokens the action has, as a server says that keeps the ids to itself; then there are
            neither context nor ids.
        branch: Whether it goes on from another turn than the one before, or from none, where several were made of
            conversations that differ.
        system: The system message of a conversation that begins here, where it is not part of the observation.
    """

    context: list[int]
    observation: str
    executor: Executor
    ids: list[int]
    log_probs: list[float]
    text: str
    cut: bool = False
    weight_versions: list[str] = field(default_factory=list)
    reported_tokens: int | None = None
    branch: bool = False
    system: str = ""


@dataclass
class Episode:
    """One played episode.

    Args:
        task: Number of the task.
        sample: Which of the task's episodes.
        seed: Of the environment.
        task_id: The task's name.
        version: Weights the student acted with, where its engine has no labels.
        turns: The actions in order.
        reward: Sum of the rewards of the steps.
        outcome: How it ended; see ``OUTCOMES``.
        error: What a failed environment said.
        counts: What the environment counted, and the type of what it raised.
        last_words: What the environment said when it ended the episode, which nobody is shown.
    """

    task: int
    sample: int
    seed: int
    task_id: str = ""
    version: str = ""
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    outcome: Outcome = "done"
    error: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    last_words: str = ""

    @property
    def failed(self) -> bool:
        """Whether the environment or the teacher let the episode down."""
        return self.outcome in FAILURES

    def samples(self, group: int, first_index: int) -> list[Sample]:
        """The episode as samples over whole stretches of it, none when no action was taken.

        The ids of all actions have mask 1, what stands between them mask 0 and log-prob 0.0. A context that does not
        go on from the ids recorded so far begins a sibling sample; siblings share the rollout id, ``first_index``,
        and the reward. Samples of a failed episode have status FAILED, so that they are neither trained on nor
        counted.

        Args:
            group: Index of the group.
            first_index: Index of the first sample; siblings count on from it.
        """
        samples: list[Sample] = []
        for number, turn in enumerate(self.turns):
            if not samples or turn.context[: len(samples[-1].tokens)] != samples[-1].tokens:
                samples.append(self._opened(turn, group, first_index, len(samples)))
            current = samples[-1]
            current.append_environment(turn.context[len(current.tokens) :])
            current.append_generated(turn.ids, turn.log_probs, turn=number, executor=EXECUTORS[turn.executor])
            current.response += turn.text if not current.response else "\n" + turn.text
            if turn.executor == "student":
                current.weight_versions += list(dict.fromkeys(turn.weight_versions)) or [self.version]
            current.status = self._status(turn)
        return samples

    def _opened(self, turn: Turn, group: int, first_index: int, number: int) -> Sample:
        return Sample(
            group_index=group,
            index=first_index + number,
            rollout_id=first_index,
            prompt=turn.observation,
            tokens=list(turn.context),
            reward=self.reward,
            metadata={"outcome": self.outcome, "turns": len(self.turns), "error": self.error},
            task_id=self.task_id,
        )

    def _status(self, last: Turn) -> SampleStatus:
        if self.failed:
            return SampleStatus.FAILED
        ended = self.outcome == "done" and not last.cut
        return SampleStatus.COMPLETED if ended else SampleStatus.TRUNCATED
