"""One episode as it is kept on disk and shown to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stacx_core.rollout.episodes import FAILURES, Episode, Turn
from stacx_core.swe.agent.bash_agent import ENDINGS
from stacx_core.swe.harness.processes import HARNESS_CRASHED
from stacx_core.swe.oracle import FULL_REWARD

Who = Literal["environment", "student", "teacher"]
ENDPOINT_FAILED = "endpoint_failed"
INFRASTRUCTURE = (*FAILURES, ENDPOINT_FAILED)
"""Outcomes that say nothing about the agent."""
_TOLD = ("solved", HARNESS_CRASHED, *(ending for ending in ENDINGS if ending != "solved"))
"""What is counted and told of an episode; of several the first one."""


@dataclass(frozen=True)
class Part:
    """What one side said.

    Args:
        who: Environment, student or teacher.
        text: What was said.
        tokens: Its length in tokens, where that is known.
        mask: 1 where the tokens are (or would be) trained on.
        cut: Whether it was cut at the length limit.
        branch: Whether what follows goes on from another place than the part before, or begins anew.
    """

    who: Who
    text: str
    tokens: int | None = None
    mask: int = 0
    cut: bool = False
    branch: bool = False


@dataclass(frozen=True)
class Trajectory:
    """One episode.

    Args:
        task: Name of the task.
        sample: Which of the task's episodes.
        outcome: How it ended: one of ``stacx_core.rollout.episodes.OUTCOMES``, or that the endpoint failed.
        reward: Of the whole episode.
        parts: What was said, in order.
        error: What went wrong, or "".
        counts: What the environment counted.
        last_words: What the environment said at the end, which the agent was not shown.
    """

    task: str
    sample: int
    outcome: str
    reward: float
    parts: list[Part]
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    last_words: str = ""

    @property
    def failed(self) -> bool:
        """Whether this says nothing about the agent: an infrastructure error."""
        return self.outcome in INFRASTRUCTURE

    @property
    def solved(self) -> bool:
        """Whether the full reward was earned."""
        return not self.failed and self.reward >= FULL_REWARD

    @property
    def crashed(self) -> bool:
        """Whether the agent's program failed, which is a failure of the agent's, unless the task was solved."""
        return not self.failed and self.counts.get(HARNESS_CRASHED, 0) > 0

    @property
    def verdict(self) -> str:
        """How it ended, in one word: an ending of the environment or a crash, the type of an error, or the outcome.

        What was left unsolved at a limit has the name of the limit.
        """
        if self.outcome == "env_error":
            return self.error.partition(":")[0]
        counted = [ending for ending in _TOLD if self.counts.get(ending)]
        told = [ending for ending in counted if ending != "unsolved" or self.outcome == "done"]
        return next(iter(told), self.outcome)

    @property
    def actions(self) -> list[Part]:
        """What the agent said."""
        return [part for part in self.parts if part.who != "environment"]

    @property
    def opening(self) -> int:
        """How many parts there are before the agent first acts."""
        return next((place for place, part in enumerate(self.parts) if part.who != "environment"), len(self.parts))

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "solved": self.solved, "verdict": self.verdict}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Trajectory:
        """From the object of :meth:`record`.

        Raises:
            KeyError, TypeError: It is none.
        """
        names = ("task", "sample", "outcome", "reward", "error", "counts", "last_words")
        return cls(**{name: record[name] for name in names}, parts=[Part(**part) for part in record["parts"]])

    @classmethod
    def of_episode(cls, episode: Episode) -> Trajectory:
        """From a played episode."""
        parts = list[Part]()
        for number, turn in enumerate(episode.turns):
            seen = len(turn.context) - _known(turn, episode.turns[:number]) if turn.context else None
            if turn.system:
                parts.append(Part("environment", turn.system, branch=turn.branch))
            parts.append(Part("environment", turn.observation, seen, branch=turn.branch and not turn.system))
            parts.append(Part(turn.executor, turn.text, len(turn.ids) or turn.reported_tokens, 1, turn.cut))
        return cls(
            episode.task_id,
            episode.sample,
            episode.outcome,
            episode.reward,
            parts,
            episode.error,
            {name: count for name, count in episode.counts.items() if count},
            episode.last_words,
        )


def _known(turn: Turn, earlier: Sequence[Turn]) -> int:
    """How many ids of a turn's context are those of the latest turn that it goes on from."""
    for before in reversed(earlier):
        said = [*before.context, *before.ids]
        if turn.context[: len(said)] == said:
            return len(said)
    return 0
