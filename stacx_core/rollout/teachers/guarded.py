"""A teacher that may be late, wrong or absent, and what then becomes of the samples."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from stacx_core.backends.model import vocabulary_size
from stacx_core.data.sample import Sample
from stacx_core.errors import StacxError, TeacherError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.teachers.answers import action_problem, query_problem, score_problem
from stacx_core.rollout.teachers.protocol import QueryTeacher, Teacher, TeacherAction, TeacherScore, TeacherTurn
from stacx_core.rollout.timed_calls import timed_calls

Answer = TypeVar("Answer")
Ids = Sequence[list[list[int]]]
TELLING = 4
"""Failures to act within a rollout from which on their share says something before the rollout is over."""

logger = logging.getLogger(__name__)


class GuardedTeacher:
    """Asks a teacher again when it raises, is late or answers with what is no score, and gives up after a while.

    Only what failed is asked again, ``--teacher-retries`` times, after ``--teacher-retry-wait`` seconds and then twice
    as long each time. An error of Stacx, such as a sample longer than the teacher's context, is not worth a second
    try and goes through at once. What failed to the last is never given a number: ``--teacher-failure`` decides.

    Args:
        teacher: What to ask.
        args: The resolved knobs.
        timeout: Seconds a call may take; ``None`` waits for ever. A call that is late goes on in a thread of its own,
            and its answer is thrown away.
    """

    def __init__(self, teacher: Teacher, args: Args, timeout: float | None) -> None:
        self.teacher = teacher
        self.args = args
        self.timeout = timeout
        self.vocabulary = vocabulary_size(args.hf_checkpoint) or sys.maxsize
        self._counts: Counter[str] = Counter()
        self._said = ""
        """Of its last failure."""
        self._acted: Counter[str] = Counter()
        """States of this rollout in which it was ``asked`` to act, and in which it ``failed``."""

    @property
    def takes_queries(self) -> bool:
        """Whether the teacher can be asked for chosen ids."""
        return isinstance(self.teacher, QueryTeacher)

    def take_metrics(self) -> dict[str, float]:
        """``teacher_failed``, samples and states, and ``teacher_retries`` since the last call, the end of a rollout.

        Raises:
            TeacherError: It was to act, and failed in more than ``--teacher-max-failed`` of the states.
        """
        counts, self._counts = self._counts, Counter()
        acted, self._acted = self._acted, Counter()
        self._check_share(acted["failed"], acted["asked"], "states")
        return {name: float(counts[name]) for name in ("teacher_failed", "teacher_retries")}

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`.

        Raises:
            TeacherError: A sample could not be scored.
        """
        scores, problems = self._score(samples, top_k)
        for sample, problem in zip(samples, problems, strict=True):
            if problem:
                raise TeacherError(f"the teacher failed on {sample.describe()}: {problem}")
        return [score for score in scores if score is not None]

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | None]:
        """One action per turn, in order; ``None`` where the teacher failed and the run goes on.

        Raises:
            TeacherError: The teacher failed, and the policy is ``raise``, or more than ``--teacher-max-failed`` failed.
        """

        def ask(pending: Sequence[int]) -> Sequence[Any]:
            return self.teacher.act([turns[i] for i in pending], params)

        actions, problems = self._asked(len(turns), ask, lambda i, action: action_problem(action, self.vocabulary))
        failed = [(f"state {i}", problem) for i, problem in enumerate(problems) if problem]
        self._counts["teacher_failed"] += len(failed)
        self._acted.update(asked=len(turns), failed=len(failed))
        self._tell(failed, len(turns), "states")
        if self._acted["failed"] >= TELLING:
            self._check_share(self._acted["failed"], self._acted["asked"], "states so far")
        return actions

    def label(self, samples: Sequence[Sample], top_k: int, ids: Ids | None = None) -> dict[str, float]:
        """Write the teacher's scores into the samples, and do as ``--teacher-failure`` says where it has none.

        A dropped sample is taken out of the loss and of its group's statistics. A masked one keeps its reward, but
        none of its tokens is trained on; its log-probs are NaN.

        Args:
            samples: Samples without a response are left as they are.
            top_k: Likeliest ids to ask for, 0 for none.
            ids: Per sample ``[R][K]`` further ids to ask for; they are written behind the likeliest ones.

        Returns:
            ``teacher_failed`` and ``teacher_retries``.

        Raises:
            TeacherError: The teacher failed, and the policy is ``raise``, or more than ``--teacher-max-failed`` failed.
        """
        asked = [i for i, sample in enumerate(samples) if sample.response_length > 0]
        given = [samples[i] for i in asked]
        scores, problems = self._score(given, top_k, None if ids is None else [ids[i] for i in asked])
        failed = [(sample.describe(), problem) for sample, problem in zip(given, problems, strict=True) if problem]
        self._counts["teacher_failed"] += len(failed)
        self._tell(failed, len(given), "samples")
        self._check_share(len(failed), len(given), "samples")
        for sample, score in zip(given, scores, strict=True):
            if score is not None:
                sample.teacher_log_probs = score.log_probs
                sample.teacher_topk_ids, sample.teacher_topk_log_probs = score.topk_ids, score.topk_log_probs
            elif self.args.teacher_failure == "drop":
                sample.remove_sample = True
            else:
                _mask(sample, next((s for s in scores if s is not None), None))
        return self.take_metrics()

    def _tell(self, failed: Sequence[tuple[str, str]], total: int, what: str) -> None:
        """Stop the run, or warn of the failures."""
        if not failed:
            return
        first, problem = failed[0]
        self._said = (
            f"the teacher failed on {len(failed)} of {total} {what}, first {first}: {problem}; "
            f"asked {self.args.teacher_retries + 1} time(s)"
        )
        if self.args.teacher_failure == "raise":
            raise TeacherError(self._said, f"--teacher-failure drop or mask goes on without such {what}")
        logger.warning("%s (--teacher-failure %s)", self._said, self.args.teacher_failure)

    def _check_share(self, failed: int, asked: int, what: str) -> None:
        if failed > self.args.teacher_max_failed * asked:
            raise TeacherError(
                f"{self._said}; that is above --teacher-max-failed {self.args.teacher_max_failed:g}",
                f"in this rollout it failed on {failed} of {asked} {what}",
            )

    def _score(
        self, samples: Sequence[Sample], top_k: int, ids: Ids | None = None
    ) -> tuple[list[TeacherScore | None], list[str]]:
        """Scores, ``None`` where the teacher failed, and what was wrong there, else ""."""

        def ask(pending: Sequence[int]) -> Sequence[Any]:
            return self.teacher.score([samples[i] for i in pending], top_k)

        def problem(i: int, score: Any) -> str:
            return score_problem(score, samples[i], top_k, self.vocabulary)

        scores, problems = self._asked(len(samples), ask, problem)
        if ids is None:
            return scores, problems
        scored = [i for i, score in enumerate(scores) if score is not None]
        answers, troubles = self._query([samples[i] for i in scored], [ids[i] for i in scored])
        for i, answer, trouble in zip(scored, answers, troubles, strict=True):
            score = scores[i]
            problems[i] = trouble
            scores[i] = None if answer is None or score is None else _joined(score, ids[i], answer)
        return scores, problems

    def _query(self, samples: Sequence[Sample], ids: Ids) -> tuple[list[list[list[float]] | None], list[str]]:
        teacher = self.teacher
        assert isinstance(teacher, QueryTeacher)

        def ask(pending: Sequence[int]) -> Sequence[Any]:
            return teacher.query([samples[i] for i in pending], [ids[i] for i in pending])

        return self._asked(len(samples), ask, lambda i, answer: query_problem(answer, ids[i]))

    def _asked(
        self, count: int, ask: Callable[[Sequence[int]], Sequence[Any]], problem: Callable[[int, Any], str]
    ) -> tuple[list[Any], list[str]]:
        """The good answer to each of ``count`` questions or ``None``, and what was wrong with it else."""
        answers: list[Any] = [None] * count
        problems = [""] * count
        pending = list(range(count))
        for attempt in range(self.args.teacher_retries + 1):
            if not pending:
                break
            if attempt:
                self._counts["teacher_retries"] += 1
                time.sleep(self.args.teacher_retry_wait * 2 ** (attempt - 1))
            asked = tuple(pending)
            for i, answer, trouble in self._attempt(asked, ask, problem):
                answers[i], problems[i] = answer, trouble
            pending = [i for i in pending if problems[i]]
        return answers, problems

    def _attempt(
        self, pending: Sequence[int], ask: Callable[[Sequence[int]], Sequence[Any]], problem: Callable[[int, Any], str]
    ) -> list[tuple[int, Any, str]]:
        try:
            got = _within(lambda: ask(pending), self.timeout)
            if len(got) != len(pending):
                raise ValueError(f"{len(got)} answers to {len(pending)} questions")
        except (StacxError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a teacher of somebody else's making raises, sys.exit included
            return [(i, None, _described(error)) for i in pending]
        pairs = list(zip(pending, got, strict=True))
        troubles = [_trouble(answer, partial(problem, i)) for i, answer in pairs]
        return [(i, None if trouble else answer, trouble) for (i, answer), trouble in zip(pairs, troubles, strict=True)]


def _trouble(answer: Any, problem: Callable[[Any], str]) -> str:
    """What is wrong with an answer, which may be an error, or of a type that cannot even be looked at."""
    if isinstance(answer, Exception):
        return str(answer) if isinstance(answer, StacxError) else _described(answer)
    try:
        return problem(answer)
    except (AttributeError, TypeError, ValueError) as error:
        return f"it answered with {type(answer).__name__} that does not fit: {error}"


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _within(call: Callable[[], Answer], seconds: float | None) -> Answer:
    """The call's answer; raises what it raises, or `OverTime`."""
    if seconds is None:
        return call()
    (answer,) = timed_calls([call], workers=1, timeout=seconds)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _joined(score: TeacherScore, ids: list[list[int]], log_probs: list[list[float]]) -> TeacherScore:
    """The score with further ids behind its likeliest ones at each position."""
    told_ids, told = score.topk_ids or [[] for _ in ids], score.topk_log_probs or [[] for _ in ids]
    return replace(
        score,
        topk_ids=[[*first, *more] for first, more in zip(told_ids, ids, strict=True)],
        topk_log_probs=[[*first, *more] for first, more in zip(told, log_probs, strict=True)],
    )


def _mask(sample: Sample, like: TeacherScore | None) -> None:
    """Train on no token of the sample; what the teacher would have said is NaN, in the layout of another score."""
    count = sample.response_length
    sample.loss_mask = [0] * count
    sample.teacher_log_probs = [math.nan] * count
    if like is not None and like.topk_ids is not None:
        width = len(like.topk_ids[0])
        sample.teacher_topk_ids = [[0] * width for _ in range(count)]
        sample.teacher_topk_log_probs = [[math.nan] * width for _ in range(count)]
