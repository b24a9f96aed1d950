"""`stacx eval --endpoint --harness`: requests of a harness that are handed on to a model elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import BASH, TASK, Answer, send
from stacx_core.rollout.engine import SamplingParams
from stacx_core.swe.evaluation.endpoint import Endpoint
from stacx_core.swe.evaluation.forwarding import Forwarder
from stacx_core.swe.evaluation.journal import read_episodes
from stacx_core.swe.evaluation.trajectory import Trajectory
from stacx_core.swe.gateway.gateway import SessionServer
from stacx_core.swe.gateway.settings import GatewaySettings

CALL = {"id": "call_7", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
SOLVES = "RUN echo 1 > score.txt"


@pytest.fixture
def evaluate(stacx: Any, server: Any, small_tasks: Path, agent: str, tmp_path: Path) -> Callable[..., Any]:
    """`stacx eval` of the harness on both tasks, with the server's model."""

    def run(*arguments: str, harness: str = agent) -> Any:
        given = [small_tasks, "--endpoint", server.url, "--harness", harness, "--output-dir", tmp_path / "eval"]
        return stacx("eval", *given, *arguments, OPENAI_API_KEY="secret")

    return run


@pytest.fixture
def episodes(tmp_path: Path) -> Callable[[], list[Any]]:
    return lambda: read_episodes(tmp_path / "eval/episodes.jsonl")


@pytest.fixture
def forwarding(server: Any) -> Iterator[SessionServer]:
    """A forwarding server with one session open, as in an evaluation."""
    settings = GatewaySettings("policy", SamplingParams(64, 0.5, 0.9), seed=3, max_turns=4)
    with SessionServer(Forwarder(Endpoint(server.url, key="secret", waits=()), settings)) as made:
        yield made


@pytest.fixture
def ask(forwarding: SessionServer) -> Callable[..., Answer]:
    """Ask the session."""
    session = forwarding.open(TASK, -1, "one")

    def post(messages: Any, **fields: Any) -> Answer:
        body = {"model": "policy", "messages": messages, **fields}
        return send(f"{session.base_url}/chat/completions", forwarding.key, body)

    return post


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_harness_is_evaluated_with_a_model_elsewhere(
    evaluate: Any, server: Any, episodes: Any, stacx: Any, tmp_path: Path
) -> None:
    server.answer = lambda messages: SOLVES
    options = ("--samples", "2", "--eval-temperature", "0.7", "--eval-max-response-len", "99", "--rollout-top-p", "0.8")
    done = evaluate(*options, "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["complete"], summary["solved"], summary["turns_mean"]) == (True, 4, 3)
    assert summary["tokens_mean"] == 3 * len(SOLVES)
    assert summary["verdicts"] == {"solved": 4}
    asked = [(headers, body) for _, headers, body in server.asked if body]
    assert {headers["Authorization"] for headers, _ in asked} == {"Bearer secret"}
    sampling = ("model", "max_tokens", "temperature", "top_p")
    assert {tuple(body[name] for name in sampling) for _, body in asked} == {("first", 99, 0.7, 0.8)}
    assert len({body["seed"] for _, body in asked}) == len(asked) == 12
    for episode in episodes():
        assert [part.who for part in episode.parts] == ["environment", "student"] * 3
        assert episode.parts[0].text == "Write 1 into score.txt."
        assert [part.text for part in episode.actions] == [SOLVES] * 3
        assert {part.tokens for part in episode.actions} == {len(SOLVES)}
        assert "reward: 1" in episode.last_words
    shown = stacx("show-trajectory", tmp_path / "eval/episodes.jsonl", "--index", "0").out
    assert SOLVES in shown
    before = len(server.asked)
    more = evaluate(*options[2:], "--samples", "3")
    assert (more.code, len(server.asked)) == (0, before + 1 + 2 * 3), more.err
    assert "endpoint" in evaluate(*options[2:], "--samples", "3", "--endpoint", f"{server.url}/v1").err


def test_an_endpoint_that_is_away_says_nothing_of_the_model(evaluate: Any, server: Any, episodes: Any) -> None:
    server.answer = lambda messages: SOLVES
    server.refusals = [(401, "who are you?")] * 2 + [(200, '{"data": [{"id": "m"}]}')]
    done = evaluate()
    assert (done.code, "endpoint_failed" in done.out, "who are you?" in done.err) == (1, True, True), done.err
    assert {(e.outcome, e.failed, e.reward) for e in episodes()} == {("endpoint_failed", True, 0.0)}
    again = evaluate("--endpoint-model", "m")
    assert (again.code, "pass@1  1.000" in again.out) == (0, True), again.err
    assert len(episodes()) == 4


def test_a_crash_is_a_failure_of_the_agent_with_a_name(evaluate: Any, program: Any, agent: str, tmp_path: Path) -> None:
    crashing = program(Path(agent.split()[1]).read_text() + "raise SystemExit('it broke')")
    done = evaluate(harness=crashing)
    assert done.code == 0, done.err
    assert "first #0: harness_crashed" in done.err
    assert "it broke" in done.err
    assert "2 episodes had a harness that crashed; they count" in done.out
    summary = json.loads((tmp_path / "eval/summary.json").read_text())
    assert (summary["evaluated"], summary["solved"], summary["harness_crashed"]) == (2, 0, 2)
    assert summary["verdicts"] == {"harness_crashed": 2}
    tasks = [json.loads(line) for line in (tmp_path / "eval/tasks.jsonl").read_text().splitlines()]
    assert [(task["task"], task["harness_crashed"]) for task in tasks] == [("first", 1), ("second", 1)]


def test_limits_are_failures_of_the_agent(evaluate: Any, server: Any, episodes: Any) -> None:
    full = (400, "This model's maximum context length is 5 tokens")
    server.refusals = [full, full, (200, '{"data": [{"id": "m"}]}')]
    done = evaluate("--max-turns", "2")
    assert (done.code, "context_overflow" in done.out, "unsolved" in done.out) == (0, True, False), done.err
    assert {(e.verdict, e.counts["context_overflows"], len(e.actions)) for e in episodes()} == {
        ("context_overflow", 1, 0)
    }


def test_the_model_answers_max_turns_requests_and_no_more(evaluate: Any, server: Any, episodes: Any) -> None:
    done = evaluate("--max-turns", "2")
    assert done.code == 0, done.err
    assert {(e.verdict, len(e.actions)) for e in episodes()} == {("turn_limit", 2)}
    assert len(server.asked) == 1 + 2 * 2


def test_work_that_is_done_at_a_limit_counts(evaluate: Any, server: Any, episodes: Any) -> None:
    server.answer = lambda messages: SOLVES
    assert evaluate("--max-turns", "2").code == 0
    assert {(e.outcome, e.verdict, e.solved) for e in episodes()} == {("turn_limit", "solved", True)}


def test_a_request_that_the_endpoint_refuses_is_the_harnesss_own(
    evaluate: Any, server: Any, episodes: Any, agent: str
) -> None:
    server.refusals = [(422, "no such field")] * 2 + [(200, '{"data": [{"id": "m"}]}')]
    done = evaluate()
    assert done.code == 1
    assert all("no request was answered" in e.error and e.counts["refused"] == 1 for e in episodes())


def test_what_is_handed_on_and_what_is_recorded(ask: Any, forwarding: SessionServer, server: Any) -> None:
    server.answer = lambda messages: {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"}
    picture = {"type": "image_url", "image_url": {"url": "data:x"}}
    opening = [{"role": "system", "content": "Be brief."}, user([{"type": "text", "text": "What is "}, picture])]
    fields = {"tools": [BASH], "tool_choice": "required", "response_format": {"type": "json_object"}}
    answer = ask(opening, temperature=2, top_p=0.1, seed=1, max_tokens=7, **fields)
    assert answer.status == 200
    assert answer.json["model"] == "policy"
    message = answer.json["choices"][0]["message"]
    assert (message["tool_calls"], message["reasoning"]) == ([CALL], "hm")
    *_, (path, _, body) = server.asked
    assert path == "/v1/chat/completions"
    assert {name: body[name] for name in fields} == fields
    assert (body["messages"], body["model"], body["max_tokens"]) == (opening, "first", 7)
    assert (body["temperature"], body["top_p"], body["seed"] != 1) == (0.5, 0.9, True)
    server.answer = lambda messages: "Done."
    told = {"role": "tool", "tool_call_id": "call_7", "content": "a.txt"}
    assert ask([*opening, message, told], max_completion_tokens=1000).status == 200
    assert server.asked[-1][2]["max_completion_tokens"] == 64
    assert "max_tokens" not in server.asked[-1][2]
    first, second = forwarding.finish(forwarding._sessions["one"], 1.0).turns
    assert (first.observation, first.text) == (
        "What is [image_url]",
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    )
    assert (second.observation, second.text, second.reported_tokens) == ("a.txt", "Done.", 5)


def test_a_stream_is_made_of_the_whole_answer(ask: Any, server: Any) -> None:
    server.answer = lambda messages: {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
    events = ask([user("a")], stream=True, stream_options={"include_usage": True}).events
    assert not {"stream", "stream_options"} & set(server.asked[-1][2])
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    assert [call for delta in deltas for call in delta.get("tool_calls", ())] == [{"index": 0, **CALL}]
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], {"completion_tokens": 7})
    assert {(event["object"], event["model"]) for event in events} == {("chat.completion.chunk", "policy")}


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "first"}, 404, "model_not_found"),
        ({"n": 2}, 400, "unsupported_parameter"),
        ({"messages": "hello"}, 400, None),
        ({"messages": ["hello"]}, 400, None),
        ({"max_tokens": "many"}, 400, None),
        ({"stream": True, "stream_options": 3}, 400, None),
    ],
)
def test_what_cannot_be_recorded_is_refused(ask: Any, server: Any, fields: Any, status: int, code: Any) -> None:
    answer = ask(**{"messages": [user("a")], **fields})
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert [path for path, _, _ in server.asked] == ["/v1/models"]


def test_errors_of_the_endpoint_are_told_in_the_protocol(ask: Any, forwarding: Any, server: Any) -> None:
    server.refusals = [(503, "busy"), (400, "the context is too long"), (400, "no such tool")]
    told = [ask([user("a")]) for _ in range(3)]
    assert [(answer.status, answer.json["error"]["code"]) for answer in told] == [
        (400, None),
        (400, "context_length_exceeded"),
        (503, "engine_unavailable"),
    ]
    session = forwarding._sessions["one"]
    assert session.trouble[0] == "env_error"
    assert ask([user("a")]).status == 200
    assert (session.trouble, session.counts["refused"], session.counts["context_overflows"]) == (None, 1, 1)
    assert forwarding.finish(session, 0.0).outcome == "done"
    assert send(f"{session.base_url}/chat/completions", "secret", {}).status == 401


def test_other_agents_of_a_harness_make_branches(ask: Any, forwarding: Any, server: Any) -> None:
    """What goes on from an answer stands behind it, though another agent spoke in between."""
    server.answer = lambda messages: messages[-1]["content"] + "!"
    first = ask([user("a")]).json["choices"][0]["message"]
    ask([{"role": "system", "content": "Be brief."}, user("b")])
    ask([user("a"), first, user("c")])
    ask([user("a"), first, user("d")])
    episode = forwarding.finish(forwarding._sessions["one"], 0.0)
    assert [turn.text for turn in episode.turns] == ["a!", "c!", "d!", "b!"]
    shown = [(part.text, part.branch) for part in Trajectory.of_episode(episode).parts if part.who == "environment"]
    assert shown == [("a", False), ("c", False), ("d", True), ("Be brief.", True), ("b", False)]
