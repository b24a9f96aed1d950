"""What every teacher offers: scores of what the student wrote, and actions in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stacx_core.data.sample import Sample
from stacx_core.rollout.engine import SamplingParams


@dataclass(frozen=True)
class TeacherScore:
    """What the teacher says of one sample's response, R tokens long.

    Args:
        log_probs: R log-probs (nats) of the very tokens of the response, at the sampling temperature.
        topk_ids: At each of the R positions the ids the teacher finds likeliest; ``None`` when none were asked for.
        topk_log_probs: Their log-probs, in the same layout.
    """

    log_probs: list[float]
    topk_ids: list[list[int]] | None = None
    topk_log_probs: list[list[float]] | None = None


@dataclass(frozen=True)
class TeacherTurn:
    """A state in which the teacher is to act.

    Args:
        context: Token ids in front of the action, as a model sees them.
        observation: The text the environment showed last, which is what a scripted expert sees.
        seed: Of the sampling; the same state and seed give the same action.
    """

    context: Sequence[int]
    observation: str
    seed: int


@dataclass(frozen=True)
class TeacherAction:
    """What the teacher did: token ids, the end-of-turn id included, and their text without it."""

    ids: list[int]
    text: str


class Teacher(Protocol):
    """A model or an expert to learn from. ``--teacher`` names it.

    What it fails on, among other questions, it may answer with the exception.
    """

    def score(self, samples: Sequence[Sample], top_k: int) -> Sequence[TeacherScore | Exception]:
        """One score per sample, in order, of the sample's own token ids; with ``top_k`` 0 without top-k lists."""

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> Sequence[TeacherAction | Exception]:
        """One action per state, in order."""


@runtime_checkable
class QueryTeacher(Teacher, Protocol):
    """A teacher that can also be asked for the log-probs of chosen ids."""

    def query(
        self, samples: Sequence[Sample], ids: Sequence[list[list[int]]]
    ) -> Sequence[list[list[float]] | Exception]:
        """Log-probs of ids ``[R][K]`` per sample, in the same layout."""


class Actor(Protocol):
    """Acts in place of the student; ``None`` where it could not."""

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> Sequence[TeacherAction | None]:
        """One action per state, in order."""
