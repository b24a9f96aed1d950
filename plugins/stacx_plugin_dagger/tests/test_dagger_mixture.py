"""Who wrote a token decides what stands beside it."""

from __future__ import annotations

import math

from stacx_core import STUDENT, TEACHER, Episode, Turn
from stacx_plugin_dagger.mixture import routed


def test_sentinels_scores_and_zeros() -> None:
    turns = [
        Turn([5], "", "student", [6, 0], [-0.1, -0.2], "a"),
        Turn([5, 6, 0, 7], "", "teacher", [8, 0], [0.0, 0.0], "b"),
        Turn([5, 6, 0, 7, 8, 0, 9], "", "student", [3], [-0.3], "c"),
    ]
    (sample,) = Episode(0, 0, 0, turns=turns).samples(0, 0)
    assert sample.executor == [STUDENT, STUDENT, 0, TEACHER, TEACHER, 0, STUDENT]
    sample.teacher_log_probs = [-1.0, -2.0, -3.0, -4.0, -5.0, math.nan, -7.0]
    assert routed(sample) == [-1.0, -2.0, 0.0, 1.0, 1.0, 0.0, -7.0]


def test_what_the_teacher_played_alone_needs_no_score() -> None:
    (sample,) = Episode(0, 0, 0, turns=[Turn([5], "", "teacher", [6, 0], [0.0, 0.0], "a")]).samples(0, 0)
    assert routed(sample) == [1.0, 1.0]
