"""What a teacher would have done in the states that a recorded run went through."""

from __future__ import annotations

from collections.abc import Sequence

from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episodes import Episode
from stacx_core.rollout.teachers.protocol import Actor, TeacherAction, TeacherTurn
from stacx_core.seeds import sub_seed


def teacher_labels(episode: Episode, teacher: Actor, params: SamplingParams, seed: int) -> list[TeacherAction | None]:
    """One label per turn, in order; where the teacher acted itself, its action is the label and nothing is asked.

    Args:
        episode: That was recorded.
        teacher: To be asked, once for all turns.
        params: Of its sampling.
        seed: Of the run.

    Returns:
        The labels, None where the teacher failed.
    """
    asked = [number for number, turn in enumerate(episode.turns) if turn.executor == "student"]
    questions = [_question(episode, number, seed) for number in asked]
    answers: Sequence[TeacherAction | None] = teacher.act(questions, params) if questions else []
    told = dict(zip(asked, answers, strict=True))
    turns = enumerate(episode.turns)
    return [told[number] if number in told else TeacherAction(turn.ids, turn.text) for number, turn in turns]


def _question(episode: Episode, number: int, seed: int) -> TeacherTurn:
    turn = episode.turns[number]
    own = sub_seed(seed, "label", int(episode.version), episode.task, episode.sample, number)
    return TeacherTurn(turn.context, turn.observation, own)
