"""The teacher of the mixtures in smoke mode: it acts by the tasks' solutions and scores by a model."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from stacx_core import Args, Sample, TeacherScore
from stacx_core.rollout.teachers.local import LocalTeacher
from stacx_core.swe.agent.expert import SolutionExpert


class ScoringExpert(SolutionExpert):
    """Acts as its base class does, and has the log-probs of ``--teacher-load``."""

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(args, tokenizer)
        self._model = LocalTeacher(args, tokenizer)

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """What the model says of each sample."""
        return self._model.score(samples, top_k)
