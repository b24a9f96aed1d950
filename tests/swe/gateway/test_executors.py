"""Student and teacher behind one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import TASK, Policy, Scripted
from stacx_core.data.sample import STUDENT, TEACHER
from stacx_core.errors import TeacherError
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherTurn
from stacx_core.rollout.teachers.scripted import ScriptedTeacher
from stacx_core.seeds import sub_seed


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def by_coin(task: EpisodeTask, turn: int) -> Any:
    """Follows from the session's task and the request's number."""
    return "teacher" if sub_seed(0, "who", task.task, task.sample, turn) % 2 else "student"


COIN = [by_coin(TASK, turn) for turn in range(6)]


@pytest.fixture
def expert(tokenizer: Any) -> ScriptedTeacher:
    return ScriptedTeacher(lambda seen: f"expert on {seen}", tokenizer, "auto")


def converse(gateway: Any, session: Any, chat: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    answers = []
    for number in range(count):
        messages.append(user(f"{number}"))
        answers.append(chat(gateway, session, messages))
        messages.append(answers[-1].json["choices"][0]["message"])
    return answers


def test_a_mixture_of_executors_is_recorded_and_not_told(
    serve: Any, chat: Any, chat_checkpoint: Path, expert: Any
) -> None:
    assert set(COIN) == {"student", "teacher"}
    engine = Policy(chat_checkpoint)
    gateway = serve(engine, expert, by_coin)
    session = gateway.open(TASK)
    answers = converse(gateway, session, chat, 6)
    episode = gateway.finish(session, 1.0)
    assert [turn.executor for turn in episode.turns] == COIN
    assert [turn.text for turn in episode.turns if turn.executor == "teacher"] == [
        f"expert on {number}" for number, who in enumerate(COIN) if who == "teacher"
    ]
    (sample,) = episode.samples(0, 0)
    sample.validate()
    assert sample.executor is not None
    assert sample.rollout_log_probs is not None
    for number, turn in enumerate(episode.turns):
        own = [i for i, place in enumerate(sample.turn_ids or []) if place == number]
        assert [sample.tokens[sample.prompt_length + i] for i in own] == turn.ids
        assert {sample.executor[i] for i in own} == {TEACHER if turn.executor == "teacher" else STUDENT}
        assert {sample.mask[i] for i in own} == {1}
    assert len(engine.said) == COIN.count("student")

    def shape(value: Any) -> Any:
        return {key: shape(own) for key, own in value.items()} if isinstance(value, dict) else type(value)

    assert len({str(shape(answer.json)) for answer in answers}) == 1
    assert {answer.json["model"] for answer in answers} == {"policy"}


def test_an_expert_is_shown_what_was_said_since_the_assistant_spoke(serve: Any, chat: Any, expert: Any) -> None:
    gateway = serve(None, expert, lambda task, turn: "teacher")
    session = gateway.open(TASK)
    answer = chat(gateway, session, [{"role": "system", "content": "rules"}, user("a"), user("b")])
    assert answer.json["choices"][0]["message"]["content"] == "expert on a\nb"


def test_a_stop_text_ends_a_teachers_answer_too(serve: Any, chat: Any, expert: Any) -> None:
    gateway = serve(None, expert, lambda task, turn: "teacher")
    session = gateway.open(TASK)
    assert chat(gateway, session, [user("a")], stop=[" on"]).json["choices"][0]["message"]["content"] == "expert"
    (turn,) = gateway.finish(session, 0.0).turns
    assert len(turn.ids) == len("expert on")


class Silent:
    """A teacher that does not act."""

    error: Exception | None = None

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | None]:
        if self.error:
            raise self.error
        return [None for _ in turns]


@pytest.mark.parametrize("error", [None, TeacherError("too often")])
def test_a_teacher_that_fails_costs_its_run_only(serve: Any, chat: Any, tokenizer: Any, error: Any) -> None:
    teacher = Silent()
    teacher.error = error
    engine = Scripted(lambda prompt: "yes", tokenizer)
    gateway = serve(engine, teacher, lambda task, turn: "teacher" if task.sample == 0 else "student")
    lost, kept = gateway.open(EpisodeTask(0, 0, 0, "t")), gateway.open(EpisodeTask(0, 1, 0, "t"))
    assert chat(gateway, lost, [user("a")]).status == 503
    assert chat(gateway, kept, [user("a")]).status == 200
    assert [gateway.finish(own, 1.0).outcome for own in (lost, kept)] == ["teacher_failed", "done"]


def test_an_executor_that_there_is_not(serve: Any, chat: Any) -> None:
    gateway = serve(None)
    session = gateway.open(TASK)
    answer = chat(gateway, session, [user("a")])
    assert answer.status == 500
    assert "there is no engine" in answer.json["error"]["message"]


def test_a_choice_that_fails_costs_its_run_only(serve: Any, chat: Any, tokenizer: Any) -> None:
    engine = Scripted(lambda prompt: "yes", tokenizer)
    gateway = serve(engine, None, lambda task, turn: {1: "student"}[task.sample])
    lost, kept = gateway.open(EpisodeTask(0, 0, 0, "t")), gateway.open(EpisodeTask(0, 1, 0, "t"))
    assert [chat(gateway, own, [user("a")]).status for own in (lost, kept)] == [500, 200]
    assert [gateway.finish(own, 1.0).outcome for own in (lost, kept)] == ["env_error", "done"]


def test_the_student_says_the_same_whoever_else_is_asked(serve: Any, chat: Any, chat_checkpoint: Path) -> None:
    """Its seed follows from the run, the rollout, the task and the request's number."""
    said = []
    for rollout, seed in ((0, 0), (0, 0), (1, 0), (0, 1)):
        gateway = serve(Policy(chat_checkpoint), seed=seed)
        session = gateway.open(TASK, rollout)
        converse(gateway, session, chat, 2)
        said.append([turn.ids for turn in gateway.finish(session, 0.0).turns])
    assert said[0] == said[1]
    assert said[0] != said[2]
    assert said[0] != said[3]
