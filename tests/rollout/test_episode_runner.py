"""Episodes on the tiny model: tokens in and out, who acts, and environments that misbehave."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from transformers import AutoTokenizer

from stacx_core.data.sample import Message, Sample
from stacx_core.errors import ConfigError
from stacx_core.rollout.engine import Generation, GenerationRequest, RolloutEngine, SamplingParams
from stacx_core.rollout.environment import Step
from stacx_core.rollout.episode_metrics import episode_metrics
from stacx_core.rollout.episode_runner import EpisodeRunner, episode_runner
from stacx_core.rollout.episodes import Episode, EpisodeTask
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.playing import student_only
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn

END = 0
PARAMS = SamplingParams(4)
TASKS = [EpisodeTask(task, sample, 100 + task, f"train/{task}") for task in range(4) for sample in range(2)]
CHAT = (
    "{% for m in messages %}{{ '+' if m.role == 'user' else '=' }}{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)


class Sums:
    """Asks for one to three sums, and pays a tenth for each digit of an answer."""

    def reset(self, seed: int) -> str | list[Message]:
        self.seed = seed
        self.random = random.Random(seed)
        self.left = 1 + seed % 3
        return self.question()

    def question(self) -> str:
        return f"{self.random.randint(0, 9)}+{self.random.randint(0, 9)}"

    def step(self, action: str) -> Step:
        self.left -= 1
        return Step(self.question(), sum(map(str.isdigit, action)) / 10, self.left == 0)

    def render(self) -> str:
        return f"{self.left} left"

    def close(self) -> None:
        pass


class Raising(Sums):
    """Task 1 cannot be begun, task 2 fails at its second action."""

    def reset(self, seed: int) -> str | list[Message]:
        if seed == 101:
            raise ValueError("no such sum")
        return super().reset(seed)

    def step(self, action: str) -> Step:
        if self.seed == 102 and self.left == 1:
            raise SystemExit(3)
        self.left = min(self.left, 2) if self.seed == 102 else self.left
        return super().step(action)


class Hanging(Sums):
    """Task 2 waits for ever, or until the end of the test."""

    release: threading.Event

    def step(self, action: str) -> Step:
        if self.seed == 102:
            self.release.wait()
        return super().step(action)

    def close(self) -> None:
        assert self.seed != 102, "an environment that hangs is not touched again"


class Endless(Sums):
    """Never done."""

    def step(self, action: str) -> Step:
        return Step("1+1", 0.25)


class Forgetful(Sums):
    """Shows the newest question alone, so that each context is another."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        return Step([{"role": "user", "content": str(step.observation)}], step.reward, step.done)


class HalfPair(Sums):
    """Task 1 shows half a surrogate pair, which no tokenizer can read."""

    def step(self, action: str) -> Step:
        return Step("\ud800", 0.0) if self.seed == 101 else super().step(action)


class Wrong(Sums):
    """Returns what is no step, an infinite reward, or no observation, by the task."""

    def step(self, action: str) -> Any:
        bad: list[Any] = [super().step(action), "1+1", Step("1+1", float("inf")), Step([{"role": "user"}])]
        return bad[self.seed - 100]


class RecordedEngine:
    """Passes on to an engine and keeps what it was asked and what it answered."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self.calls: list[tuple[list[int], list[int], list[float]]] = []

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        answers = self.engine.generate(requests, params)
        for request, group in zip(requests, answers, strict=True):
            self.calls += [(list(request.prompt), answer.ids, answer.log_probs) for answer in group]
        return answers


class Expert:
    """Answers every sum with its last character."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[TeacherTurn] = []

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        return [TeacherScore([-1.0] * sample.response_length) for sample in samples]

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction]:
        self.asked += turns
        texts = [turn.observation[-1] for turn in turns]
        return [TeacherAction([*self.tokenizer.encode(text), END], text) for text in texts]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Any) -> Any:
    return AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture
def engine(model: Any) -> RecordedEngine:
    return RecordedEngine(LocalEngine(model, [END], 256))


@pytest.fixture
def runner(host_args: Any, tokenizer: Any) -> Callable[..., EpisodeRunner]:
    """A runner with room for 64 tokens and patience for everything but what hangs."""

    def build(environment: Any = Sums, template: str | None = None, context: int = 64, **given: Any) -> EpisodeRunner:
        tokenizer.chat_template = template
        return EpisodeRunner(host_args(**given), tokenizer, context, environment)

    return build


def play(
    runner: EpisodeRunner, engine: Any, tasks: Sequence[EpisodeTask] = TASKS, params: SamplingParams = PARAMS
) -> list[Episode]:
    return runner.run(tasks, engine, None, student_only, params, rollout=5)


def test_episodes_are_played_to_their_end(runner: Any, engine: Any) -> None:
    episodes = play(runner(), engine)
    assert [(e.task, e.sample, e.seed, e.version) for e in episodes] == [(t.task, t.sample, t.seed, "5") for t in TASKS]
    assert [len(e.turns) for e in episodes] == [1 + t.seed % 3 for t in TASKS]
    assert {e.outcome for e in episodes} == {"done"}
    for episode in episodes:
        digits = sum(map(str.isdigit, "".join(turn.text for turn in episode.turns)))
        assert episode.reward == pytest.approx(digits / 10)


@pytest.mark.parametrize("template", [None, CHAT])
def test_what_is_trained_is_what_the_engine_returned(runner: Any, engine: Any, template: str | None) -> None:
    episodes = play(runner(template=template), engine)
    for episode in episodes:
        (sample,) = episode.samples(0, 0)
        trained = [token for token, one in zip(sample.tokens[sample.prompt_length :], sample.mask, strict=True) if one]
        assert trained == [token for turn in episode.turns for token in turn.ids]
        for turn in episode.turns:
            assert (turn.context, turn.ids, turn.log_probs) in engine.calls
            assert sample.tokens[: len(turn.context) + len(turn.ids)] == turn.context + turn.ids
    assert len(engine.calls) == sum(len(e.turns) for e in episodes)


def test_between_two_actions_stands_the_end_and_the_next_question(runner: Any, engine: Any, tokenizer: Any) -> None:
    (episode,) = play(runner(template=CHAT), engine, [EpisodeTask(0, 0, 101, "")])
    assert len(episode.turns) == 3
    for turn, following in pairwise(episode.turns):
        between = following.context[len(turn.context) + len(turn.ids) :]
        closing = [] if turn.ids[-1] == END else [END]
        assert between == [*closing, *tokenizer.encode(f"+{following.observation}<end>=")]
        assert turn.cut == (turn.ids[-1] != END)


def played(episodes: Sequence[Episode]) -> list[Any]:
    """Everything about episodes but log-probs, which move in the last digit with what is decoded beside them."""
    return [(e.task, e.sample, e.reward, e.outcome, [(t.context, t.ids, t.text) for t in e.turns]) for e in episodes]


@pytest.mark.parametrize("given", [{"env_workers": 1}, {"env_workers": 3}])
def test_the_number_of_workers_changes_nothing(runner: Any, engine: Any, given: dict[str, int]) -> None:
    assert play(runner(**given), engine) == play(runner(), engine)


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_played_beside_an_episode_changes_nothing(runner: Any, engine: Any, size: int) -> None:
    together = play(runner(), engine)
    apart = [e for start in range(0, 8, size) for e in play(runner(), engine, TASKS[start : start + size])]
    assert played(together) == played(apart)


def test_samples_of_a_task_share_its_questions_and_not_their_seeds(runner: Any, engine: Any) -> None:
    tasks = [EpisodeTask(0, sample, 100, "") for sample in range(12)]
    episodes = play(runner(), engine, tasks)
    assert len({e.turns[0].observation for e in episodes}) == 1
    assert len({tuple(e.turns[0].ids) for e in episodes}) > 1


def test_an_environment_that_raises_ends_its_own_episodes(runner: Any, engine: Any) -> None:
    unhurt, episodes = play(runner(), engine), play(runner(Raising), engine)
    assert [e.outcome for e in episodes] == ["done"] * 2 + ["env_error"] * 4 + ["done"] * 2
    assert [len(e.turns) for e in episodes[2:6]] == [0, 0, 1, 1]
    assert {e.error for e in episodes} == {"", "ValueError: no such sum", "SystemExit: 3"}
    assert played(episodes[:2] + episodes[6:]) == played(unhurt[:2] + unhurt[6:])


def test_an_environment_that_hangs_ends_its_own_episodes(runner: Any, engine: Any, caplog: Any) -> None:
    unhurt = play(runner(), engine)
    Hanging.release = threading.Event()
    try:
        episodes = play(runner(Hanging, episode_timeout=2.0, env_workers=2), engine)
    finally:
        Hanging.release.set()
    assert [e.outcome for e in episodes] == ["done"] * 4 + ["env_timeout"] * 2 + ["done"] * 2
    assert {e.error for e in episodes[4:6]} == {"no answer within 2 seconds"}
    assert played(episodes[:4] + episodes[6:]) == played(unhurt[:4] + unhurt[6:])
    assert not caplog.records


def test_what_is_no_step_is_the_environments_error(runner: Any, engine: Any) -> None:
    episodes = play(runner(Wrong, max_turns=2), engine, TASKS[::2])
    assert [e.outcome for e in episodes[1:]] == ["env_error"] * 3
    assert "step returned str; return a stacx_core.Step" in episodes[1].error
    assert "the reward is inf" in episodes[2].error
    assert "'content' must be a string" in episodes[3].error


def test_what_cannot_be_tokenised_costs_its_own_episode(runner: Any, engine: Any) -> None:
    episodes = play(runner(HalfPair, max_turns=2), engine, TASKS[::2])
    assert [e.outcome == "env_error" for e in episodes] == [False, True, False, False]


def test_an_episode_ends_at_the_turn_limit(runner: Any, engine: Any) -> None:
    episodes = play(runner(Endless, max_turns=3), engine)
    assert {(e.outcome, len(e.turns), e.reward) for e in episodes} == {("turn_limit", 3, 0.75)}


def test_an_episode_ends_where_the_context_has_no_room(runner: Any, engine: Any) -> None:
    """Three tokens of a question and four of an answer with its end: the third answer still fits into 24."""
    episodes = play(runner(Endless, context=24), engine)
    for episode in episodes:
        last = episode.turns[-1]
        assert episode.outcome == "context_overflow"
        assert len(last.context) + 4 <= 24 < len(last.context) + len(last.ids) + 1 + 3 + 4
    (nothing,) = play(runner(Endless, context=6), engine, TASKS[:1])
    assert (nothing.outcome, nothing.turns) == ("context_overflow", [])


def test_a_rewritten_history_makes_siblings_of_one_rollout(runner: Any, engine: Any) -> None:
    (episode,) = play(runner(Forgetful, template=CHAT), engine, [EpisodeTask(0, 0, 101, "")])
    samples = episode.samples(group=2, first_index=9)
    assert [s.rollout_id for s in samples] == [9, 9, 9]
    assert [s.index for s in samples] == [9, 10, 11]
    assert [(s.tokens[: s.prompt_length], s.tokens[s.prompt_length :]) for s in samples] == [
        (context, ids) for context, ids, _ in engine.calls
    ]


def test_messages_without_a_template_are_the_environments_error(runner: Any, engine: Any) -> None:
    (episode,) = play(runner(Forgetful), engine, [EpisodeTask(0, 0, 101, "")])
    assert (episode.outcome, len(episode.turns)) == ("env_error", 1)
    assert "the tokenizer has no chat template" in episode.error


def test_the_teacher_acts_where_it_is_named(runner: Any, engine: Any, tokenizer: Any) -> None:
    expert = Expert(tokenizer)
    who = lambda task, turn: "teacher" if (task.task + turn) % 2 else "student"  # noqa: E731
    episodes = runner().run(TASKS, engine, expert, who, PARAMS, rollout=5)
    assert [t.executor for e in episodes for t in e.turns] == [
        who(e, number) for e in episodes for number in range(len(e.turns))
    ]
    acted = [t for e in episodes for t in e.turns if t.executor == "teacher"]
    assert sorted(t.context for t in acted) == sorted(t.context for t in expert.asked)
    for turn in acted:
        assert turn.ids == [*tokenizer.encode(turn.observation[-1]), END]
        assert turn.log_probs == [0.0, 0.0]
    assert len({turn.seed for turn in expert.asked}) == len(acted)


def test_a_teacher_that_has_no_room_ends_the_episode(runner: Any, engine: Any, tokenizer: Any) -> None:
    short = SamplingParams(1)
    (episode,) = runner(context=4).run(TASKS[:1], engine, Expert(tokenizer), lambda *_: "teacher", short, rollout=0)
    assert (episode.outcome, episode.turns) == ("context_overflow", [])
    with pytest.raises(ValueError, match="there is none"):
        runner().run(TASKS[:1], engine, None, lambda *_: "teacher", PARAMS, rollout=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environment": "textarena:TicTacToe-v0"}, "its first task fails: AssertionError"),
        (
            {"environment": "reasoning_gym:chain_sum", "rollout_max_response_len": 60},
            r"the first observation has \d+ tokens, which leaves no room for --rollout-max-response-len 60 within 64",
        ),
    ],
)
def test_an_environment_that_cannot_be_begun_is_a_config_error(
    host_args: Any, tokenizer: Any, given: dict[str, Any], message: str
) -> None:
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=message):
        episode_runner(host_args(**given), tokenizer, 64)


class Limited:
    """Makes sums of which two are open at a time, and remembers how many were."""

    at_once = 2
    longest_call = 99.0

    def __init__(self) -> None:
        self.open, self.most = 0, 0

    def __call__(self) -> Sums:
        self.open += 1
        self.most = max(self.most, self.open)
        made = Sums()
        made.close = self.closed  # type: ignore[method-assign]
        return made

    def closed(self) -> None:
        self.open -= 1


def test_episodes_begin_as_others_end_where_few_can_be_open(runner: Any, engine: Any) -> None:
    limited = Limited()
    build = runner(limited)
    assert build.patience == 99.0
    assert played(play(build, engine)) == played(play(runner(), engine))
    assert (limited.open, limited.most) == (0, 2)
    places = [place for place, _ in build.play(TASKS[::-2], engine, None, student_only, PARAMS, rollout=5)]
    assert sorted(places) == list(range(4))
    assert places != sorted(places)
    limited.at_once = 0
    with pytest.raises(ConfigError, match="at_once is 0; it must be at least 1"):
        runner(limited)


def test_what_is_left_open_is_closed_when_playing_stops(runner: Any, engine: Any) -> None:
    limited = Limited()
    playing = runner(limited, max_turns=1).play(TASKS, engine, None, student_only, PARAMS, rollout=5)
    next(playing)
    playing.close()
    assert limited.open == 0


class Counting(Sums):
    """Counts its steps, and the digits it was told."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        if self.seed == 102:
            raise ValueError("no such sum")
        return Step(step.observation, step.reward, step.done, {"steps": 1, "ends": int(step.done)})


def test_what_environments_count_is_added_up(runner: Any, engine: Any) -> None:
    metrics = episode_metrics(play(runner(Counting), engine, TASKS[::2]))
    turns = sum(1 + task.seed % 3 for task in TASKS[::2] if task.seed != 102)
    counts = {name: value for name, value in metrics.items() if name.startswith("count_")}
    assert counts == {"count_steps": turns, "count_ends": 3.0, "count_ValueError": 1.0}
