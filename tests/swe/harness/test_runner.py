"""What becomes of runs that go well and of runs that do not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import BASH, Scripted
from stacx_core.errors import EngineError, SandboxError
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episodes import Episode
from stacx_core.rollout.playing import student_only
from stacx_core.rollout.tasks import training_task
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.harness.commands import load_harness
from stacx_core.swe.harness.runner import HarnessRunner
from stacx_core.swe.sandboxes.bubblewrap import BubblewrapSandbox
from stacx_core.swe.tasks import read_tasks

Play = Callable[..., list[Episode]]


@pytest.fixture
def play(provider: Any, small_tasks: Path, host_args: Any, tokenizer: Any) -> Play:
    """Run a harness at both tasks, with an engine that answers by a function of the conversation."""

    def run(command: str, answer: Callable[[str], str] = lambda said: "yes", limit: int = 4096, **given: Any) -> Any:
        args = host_args(environment=f"harbor:{small_tasks}", harness=command, **given)
        make = HarborTasks(read_tasks(small_tasks), [], provider, 2)
        runner = HarnessRunner(args, tokenizer, limit, load_harness(command), make)
        engine = Scripted(answer, tokenizer)
        tasks = [training_task(args, number, 0) for number in range(2)]
        episodes = runner.run(tasks, engine, None, student_only, SamplingParams(64), 0)
        trained = [i for e in episodes for s in e.samples(0, 0) for i, m in trained_ids(s) if m]
        assert sorted(trained) == sorted(i for _, said in engine.said for i in said.ids)
        return episodes

    return run


def trained_ids(sample: Any) -> Any:
    return zip(sample.tokens[sample.prompt_length :], sample.mask, strict=True)


def test_the_tests_score_what_the_harness_left(play: Play, agent: str) -> None:
    episodes = play(agent, lambda said: "RUN echo 1 > score.txt; cat /proc/1/comm" if "first" in said else "no")
    assert [(e.task_id, e.outcome, e.reward, e.counts["unsolved"]) for e in episodes] == [
        ("train/0", "done", 0.0, 1),
        ("train/1", "done", 0.0, 1),
    ]
    solved = play(agent, lambda said: "RUN echo 1 > score.txt && pwd")
    assert [(e.reward, e.counts["solved"], len(e.turns)) for e in solved] == [(1.0, 1, 3)] * 2
    assert solved[0].turns[1].observation == "0 /app\n"
    assert "reward: 1" in solved[0].last_words


def test_a_crash_after_an_answer_is_scored_and_counted(play: Play, program: Any, agent: str) -> None:
    text = Path(agent.split()[1]).read_text()
    episodes = play(program(text + "raise SystemExit('it broke')"), lambda said: "RUN echo 1 > score.txt")
    assert [(e.outcome, e.reward, e.counts["harness_crashed"]) for e in episodes] == [("done", 1.0, 1)] * 2
    assert "exit code 1" in episodes[0].last_words
    assert "it broke" in episodes[0].last_words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise SystemExit('no model')", "no request was answered; the harness ended with exit code 1: no model"),
        ("print('nothing to do')", "no request was answered; the harness ended with exit code 0: nothing to do"),
        ("import os; os.kill(os.getpid(), 9)", "the harness ended with exit code 137"),
    ],
)
def test_a_harness_that_got_no_answer_is_nobodys_failure(play: Play, program: Any, text: str, told: str) -> None:
    for episode in play(program(text)):
        assert (episode.outcome, episode.samples(0, 0)) == ("env_error", [])
        assert told in episode.error


def test_a_signal_after_an_answer_removes_the_samples(play: Play, program: Any, agent: str) -> None:
    text = Path(agent.split()[1]).read_text()
    for episode in play(program(text + "os.kill(os.getpid(), 9)")):
        assert (episode.outcome, len(episode.turns)) == ("env_error", 3)
        assert all(sample.removed for sample in episode.samples(0, 0))


def test_a_harness_that_takes_too_long_ends_with_all_that_it_started(
    play: Play, program: Any, agent: str, traces: Any
) -> None:
    hang = "subprocess.Popen(['sleep', '1000'], start_new_session=True); os.fork(); os.setsid(); import time; "
    text = Path(agent.split()[1]).read_text() + hang + "time.sleep(1000)"
    episodes = play(program(text), lambda said: "RUN echo 1 > score.txt", harness_timeout=4.0)
    assert [(e.outcome, e.reward, e.counts["agent_timeout"], e.counts["harness_crashed"]) for e in episodes] == [
        ("turn_limit", 1.0, 1, 0)
    ] * 2
    assert set(traces.processes()) <= {os.getpid()}
    assert list(traces.temporary.iterdir()) == []


def test_what_a_harness_leaves_running_ends_with_it(play: Play, program: Any, agent: str, traces: Any) -> None:
    text = Path(agent.split()[1]).read_text() + "subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    assert [e.outcome for e in play(program(text))] == ["done", "done"]
    assert set(traces.processes()) <= {os.getpid()}


def test_the_model_answers_max_turns_requests_and_no_more(play: Play, agent: str) -> None:
    episodes = play(agent, max_turns=2)
    assert [(e.outcome, len(e.turns), e.counts["harness_crashed"]) for e in episodes] == [("turn_limit", 2, 0)] * 2


def test_a_full_context_ends_the_run_and_is_trained_on(play: Play, agent: str) -> None:
    episodes = play(agent, lambda said: "RUN printf '%200s'", limit=200)
    assert [(e.outcome, len(e.turns), e.counts["context_overflows"]) for e in episodes] == [
        ("context_overflow", 1, 1)
    ] * 2
    assert not any(sample.removed for episode in episodes for sample in episode.samples(0, 0))


def test_calls_that_cannot_be_read_are_counted(play: Play, program: Any, agent: str) -> None:
    tools = f'"messages": messages, "tools": [{BASH}]'
    text = Path(agent.split()[1]).read_text().replace('"messages": messages', tools)
    for episode in play(program(text), lambda said: "<tool_call>{</tool_call>"):
        assert (episode.outcome, episode.counts["malformed_tool_calls"]) == ("done", 3)


def test_a_sandbox_that_is_lost_is_no_failure_of_the_policy(
    play: Play, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Any:
        raise SandboxError("gone")

    monkeypatch.setattr(BubblewrapSandbox, "run", lost)
    for episode in play(agent):
        assert (episode.outcome, episode.error) == ("env_error", "SandboxError: gone")
        assert episode.counts["SandboxError"] == 1
        assert episode.turns[1].observation == "125 the sandbox does not answer: gone\n"


def test_an_engine_that_fails_ends_the_rollout(play: Play, agent: str, traces: Any) -> None:
    def fail(said: str) -> str:
        raise EngineError("the server is away")

    with pytest.raises(EngineError, match="the server is away"):
        play(agent, fail)
    assert set(traces.processes()) <= {os.getpid()}


def test_tests_without_a_number_are_no_failure_of_the_policy(play: Play, agent: str) -> None:
    for episode in play(agent, lambda said: "RUN echo much > score.txt"):
        assert (episode.outcome, episode.counts["VerificationError"], len(episode.turns)) == ("env_error", 1, 3)


def test_the_output_of_a_harness_is_bounded(play: Play, program: Any, agent: str) -> None:
    text = Path(agent.split()[1]).read_text() + "print('a' * 10_000_000, flush=True)\nraise SystemExit('the end')"
    for episode in play(program(text)):
        assert len(episode.error) < 2_200
        assert episode.error.endswith("the end")


def test_a_harness_finds_the_endpoint_and_a_home_of_its_own(play: Play, program: Any) -> None:
    text = """
import json, os, sys
names = ("HOME", "OPENAI_API_BASE", "OPENAI_MODEL", "no_proxy", "PYTHONPATH", "PLACE", "LLM_KEY")
found = {name: os.environ.get(name) for name in names}
print(json.dumps({**found, "words": sys.argv[3:], "folder": os.getcwd(), "key": os.environ["OPENAI_API_KEY"]}))
"""
    command = f"PLACE={{workdir}} LLM_KEY={{key}} {program(text)} '{{instruction}}' {{longest_command}} '{{}} {{ }}'"
    found = json.loads(play(command)[0].error.partition("exit code 0: ")[2])
    assert found["words"] == ["Write 1 into score.txt.", "40", "{} { }"]
    assert (found["PLACE"], found["OPENAI_MODEL"], found["PYTHONPATH"]) == ("/app", "policy", None)
    assert found["HOME"] == found["folder"] != os.environ["HOME"]
    assert found["OPENAI_API_BASE"].startswith("http://127.0.0.1:")
    assert (found["LLM_KEY"], found["no_proxy"]) == (found["key"], "127.0.0.1")
