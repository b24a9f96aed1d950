"""Rollouts whose responses a teacher scores."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine
from stacx_core.rollout.episode_rollout import sampled_or_played
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.rollout.scoring import ScoringEngine
from stacx_core.rollout.teachers.loading import load_teacher


class TeacherScoredRollout(RollIn):
    """Lets the student answer, or play episodes of ``--environment``, and the teacher of ``--teacher`` score it.

    Writes ``teacher_log_probs``; with ``top_k`` set also ``teacher_topk_ids`` and ``teacher_topk_log_probs``, the
    teacher's likeliest tokens at each position. With ``asks_for_students`` these are followed by the student's own
    likeliest ones at the time of sampling, of which the teacher is asked.

    Subclasses set the two in ``__init__``.

    Raises:
        DataError, ConfigError, ModelError: The prompts or the teacher cannot be used.
    """

    takes_environment = True
    over_samples = True

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        self.args = args
        self.top_k = 0
        self.asks_for_students = False
        self.teacher = load_teacher(args, tokenizer, scores=True)
        self.inner = sampled_or_played(args, tokenizer, context_length)
        self.num_prompts = self.inner.num_prompts

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.rollout.protocol.RollIn`.

        Raises:
            TeacherError: The teacher failed, see :class:`stacx_core.rollout.teachers.guarded.GuardedTeacher`.
        """
        rolled = self.inner.roll(rollout, engine)
        ids = self._students_ids(rolled.samples, engine) if self.asks_for_students else None
        return Rollout(rolled.samples, {**rolled.metrics, **self.teacher.label(rolled.samples, self.top_k, ids)})

    def _students_ids(self, samples: list[Sample], engine: RolloutEngine) -> list[list[list[int]]]:
        if not isinstance(engine, ScoringEngine):
            raise ConfigError(f"{type(engine).__name__} does not tell the student's likeliest tokens; use another way")
        answered = [sample for sample in samples if sample.response_length > 0]
        scores = iter(engine.score(answered, self.top_k, self.args.rollout_temperature))
        return [(next(scores).topk_ids or []) if sample.response_length > 0 else [] for sample in samples]

    def stop(self) -> None:
        """See :class:`stacx_core.rollout.protocol.RollIn`."""
        self.inner.stop()

    def state(self) -> dict[str, Any]:
        """The position in the prompts."""
        return self.inner.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.inner.restore(state)
