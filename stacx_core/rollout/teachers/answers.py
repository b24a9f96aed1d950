"""What is wrong with a teacher's answer; every function returns "" when nothing is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stacx_core.data.sample import Sample

ROUNDING = 1e-6
"""How far above 0 a log-prob may be."""


def score_problem(score: Any, sample: Sample, top_k: int, vocabulary: int) -> str:
    """Of a :class:`stacx_core.rollout.teachers.protocol.TeacherScore`: lengths, values, and ids the policy knows."""
    count = sample.response_length
    if not isinstance(getattr(score, "log_probs", []), Sequence):
        return f"its log-probs come as {type(score.log_probs).__name__}; give a list"
    if not hasattr(score, "log_probs"):
        return f"it answered with {type(score).__name__}, not with a TeacherScore"
    if len(score.log_probs) != count:
        return f"it gave {len(score.log_probs)} log-probs for {count} response tokens"
    problem = _values_problem(score.log_probs)
    if problem or not top_k:
        return problem
    ids, log_probs = score.topk_ids, score.topk_log_probs
    if ids is None or log_probs is None:
        return f"it gave no likeliest tokens, but {top_k} were asked for"
    if len(ids) != count or len(log_probs) != count:
        return f"it gave likeliest tokens at {len(ids)} and their log-probs at {len(log_probs)} of {count} tokens"
    widths = {len(row) for row in (*ids, *log_probs)}
    if len(widths) > 1 or not 1 <= max(widths) <= top_k:
        return f"it gave lists of {sorted(widths)} likeliest tokens; give equally many at each token, at most {top_k}"
    wrong = next((index for row in ids for index in row if not 0 <= index < vocabulary), None)
    if wrong is not None:
        return f"it names the token id {wrong}; the policy has ids from 0 to {vocabulary - 1}"
    return next(filter(None, map(_values_problem, log_probs)), "")


def query_problem(answer: Any, ids: Sequence[Sequence[int]]) -> str:
    """Of log-probs of given ids ``[R][K]``."""
    if [len(row) for row in answer] != [len(row) for row in ids]:
        return "its log-probs of the tokens asked for do not fit the question"
    return next(filter(None, map(_values_problem, answer)), "")


def action_problem(action: Any, vocabulary: int) -> str:
    """Of a :class:`stacx_core.rollout.teachers.protocol.TeacherAction`."""
    if not getattr(action, "ids", None):
        return "it gave an action without a token"
    if not isinstance(action.text, str):
        return f"its action has {type(action.text).__name__} in the place of text"
    wrong = next((index for index in action.ids if type(index) is not int or not 0 <= index < vocabulary), None)
    return "" if wrong is None else f"its action has the token id {wrong}; the policy has 0 to {vocabulary - 1}"


def _values_problem(log_probs: Sequence[Any]) -> str:
    for position, value in enumerate(log_probs):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"its log-prob at response token {position} is {value!r}"
        if value > ROUNDING:
            return f"its log-prob at response token {position} is {value!r}, which is above 0"
    return ""
