"""What every teacher offers: scores of the student's own tokens, and actions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stacx_core.data.sample import Sample
from stacx_core.rollout.engine import SamplingParams


@dataclass(frozen=True)
class TeacherScore:
    """The teacher's view of one response.

    Args:
        log_probs: One per response token (nats).
        topk_ids: Per response token its likeliest ids, when asked for.
        topk_log_probs: Their log-probs, in the same layout.
    """

    log_probs: list[float]
    topk_ids: list[list[int]] | None = None
    topk_log_probs: list[list[float]] | None = None


@dataclass(frozen=True)
class TeacherTurn:
    """A state in which an action is wanted.

    Args:
        context: Token ids in front of the action.
        observation: The text the actor sees, for a teacher that reads no ids.
        seed: Of the sampling.
    """

    context: Sequence[int]
    observation: str
    seed: int


@dataclass(frozen=True)
class TeacherAction:
    """One action: its ids with the end of the turn, and its text."""

    ids: list[int]
    text: str


class Teacher(Protocol):
    """Scores what the student wrote, or acts in its place."""

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """One score per sample over its very ids, in order; ``top_k`` 0 asks for no list of ids."""

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction]:
        """One action per turn, in order."""
