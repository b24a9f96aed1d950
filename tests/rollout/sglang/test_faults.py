"""The engine against servers that fail: a wrong answer never becomes a response, and no call hangs."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from stacx_core import ConfigError, Sample, SamplingParams
from stacx_core.errors import EngineError
from stacx_core.rollout.engine import GenerationRequest
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool, servers_of
from stacx_core.rollout.sglang.server import ServerRefused, ServerUnavailable, SGLangServer

VOCABULARY = 14
GREEDY = SamplingParams(3, temperature=0)
REQUEST = GenerationRequest([2, 3], [1])
ANSWER = [5, 6, 7]
SAMPLE = Sample(index=0, tokens=[2, 3, 4, 13], response_length=3)

Change = Callable[[dict[str, Any]], Any]


def without_last(name: str) -> Change:
    """A value too few."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answer["meta_info"][name].pop()
        return answer

    return change


def with_last(name: str, value: Any) -> Change:
    """Another last log-prob."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answer["meta_info"][name][-1][0] = value
        return answer

    return change


def with_meta(**fields: Any) -> Change:
    """Other fields."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answer["meta_info"].update(fields)
        return answer

    return change


def with_ids(ids: Sequence[Any]) -> Change:
    """Other token ids."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "output_ids": list(ids)}

    return change


def wrong_answers(name: str) -> dict[str, Change]:
    """What is no answer, to a request whose answer has a list of log-probs of this name."""
    return {
        "one value too few": without_last(name),
        "not a number": with_last(name, math.nan),
        "infinite": with_last(name, -math.inf),
        "null": with_last(name, None),
        "a word": with_last(name, "-0.5"),
        "above 0": with_last(name, 0.5),
        "no such list": with_meta(**{name: None}),
        "a list of nothing": with_meta(**{name: [[], [], []]}),
        "no meta_info": lambda answer: {"text": "well"},
        "a list": lambda answer: [answer],
        "a string": lambda answer: "well",
        "no JSON": lambda answer: b"<html>well</html>",
        "cut off": lambda answer: json.dumps(answer).encode()[:-20],
        "nothing": lambda answer: b"",
        "aborted": with_meta(finish_reason={"type": "abort", "message": "out of memory"}),
        "no finish_reason": with_meta(finish_reason=None),
    }


SCORES = wrong_answers("input_token_logprobs")
GENERATIONS = {
    **wrong_answers("output_token_logprobs"),
    "an id beyond the vocabulary": with_ids([5, 6, VOCABULARY]),
    "an id below it": with_ids([5, 6, -1]),
    "an id that is none": with_ids([5, 6, "7"]),
    "ids that are none": with_ids("567"),
    "cut before the limit": with_ids([5, 6]),
    "logits that are no numbers": with_meta(finish_reason={"type": "stop", "matched": "NaN happened"}),
    "a stop at another token": with_meta(finish_reason={"type": "stop", "matched": 6}),
    "versions of fewer tokens": with_meta(weight_versions=[{"version": "1", "start": 0, "end": 2}]),
}


def engine_of(*servers: Any, on_lost: Any = None, **limits: Any) -> SGLangEngine:
    pool = ServerPool(
        [SGLangServer(server.url) for server in servers],
        Limits(**{"retries": 2, "retry_wait": 0.01, "timeout": 10.0, **limits}),
        on_lost,
    )
    return SGLangEngine(pool, [0], VOCABULARY)


def ids_of(engine: SGLangEngine, count: int = 1) -> list[list[int]]:
    return [answer.ids for (answer,) in engine.generate([REQUEST] * count, GREEDY)]


def test_503_twice_is_asked_again_with_growing_waits(fake: Any) -> None:
    server = fake(503, 503)
    assert ids_of(engine_of(server, retry_wait=0.05)) == [ANSWER]
    waits = [later - earlier for earlier, later in pairwise(server.times)]
    assert len(waits) == 2
    assert waits[0] >= 0.05
    assert waits[1] >= 0.1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_stays_unavailable_fails_after_the_stated_tries(fake: Any, status: int) -> None:
    server = fake(always=status)
    with pytest.raises(EngineError, match=rf"{server.url}/generate answered {status}: no such luck"):
        ids_of(engine_of(server))
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422, 501])
def test_what_is_refused_is_not_asked_again(fake: Any, status: int) -> None:
    server, other = fake(always=status), fake()
    with pytest.raises(ServerRefused, match=rf"{server.url}/generate answered {status}: no such luck"):
        ids_of(engine_of(server, other))
    assert len(server.bodies) == 1
    assert not other.bodies


def test_a_server_that_never_answers_is_given_up_in_time(fake: Any) -> None:
    server = fake(always="hold")
    with pytest.raises(EngineError, match=rf"{server.url}/generate: no answer within 0\.1 seconds"):
        ids_of(engine_of(server, timeout=0.1, retries=1))
    assert len(server.bodies) == 2


def test_a_connection_that_is_reset_is_made_again(fake: Any) -> None:
    server = fake("reset")
    assert ids_of(engine_of(server)) == [ANSWER]
    assert len(server.bodies) == 2


def test_nobody_listening_is_said(fake: Any) -> None:
    server = fake()
    server.kill()
    with pytest.raises(EngineError, match=rf"{server.url}/generate: .*connection"):
        ids_of(engine_of(server))


@pytest.mark.parametrize("wrong", GENERATIONS)
def test_a_wrong_answer_is_asked_for_again_and_never_used(fake: Any, wrong: str) -> None:
    server = fake(GENERATIONS[wrong])
    assert ids_of(engine_of(server)) == [ANSWER]
    server = fake(always=GENERATIONS[wrong])
    with pytest.raises(ServerUnavailable, match=rf"{server.url}/generate"):
        ids_of(engine_of(server))
    assert len(server.bodies) == 3


@pytest.mark.parametrize("wrong", SCORES)
def test_a_wrong_score_is_asked_for_again_and_never_used(fake: Any, wrong: str) -> None:
    server = fake(SCORES[wrong])
    (score,) = engine_of(server).score([SAMPLE], 2, 1.0)
    assert len(score.log_probs) == 3
    assert score.topk_ids == [[0, 1]] * 3
    server = fake(always=SCORES[wrong])
    with pytest.raises(ServerUnavailable, match=rf"{server.url}/generate"):
        engine_of(server).score([SAMPLE], 2, 1.0)


@pytest.mark.parametrize("name", ["input_top_logprobs", "input_token_ids_logprobs"])
@pytest.mark.parametrize(
    "rows",
    [None, [], [None], [None, [[-1.0, 1, None]]] * 2, [None, *[[[-1.0, 1, None]]] * 3], [None, None, None, None]],
)
def test_wrong_lists_of_ids_are_failures_too(fake: Any, name: str, rows: Any) -> None:
    engine = engine_of(fake(always=with_meta(**{name: rows})))
    ask = {
        "input_top_logprobs": lambda: engine.score([SAMPLE], 2, 1.0),
        "input_token_ids_logprobs": lambda: engine.query([SAMPLE], [[[1, 2]] * 3], 1.0),
    }
    with pytest.raises(ServerUnavailable, match=name):
        ask[name]()


def test_a_server_that_dies_in_the_middle_leaves_its_work_to_the_other(fake: Any) -> None:
    dying, other = fake(always="hold"), fake()
    engine = engine_of(dying, other)
    answers: list[list[list[int]]] = []
    caller = threading.Thread(target=lambda: answers.append(ids_of(engine, 40)))
    caller.start()
    dying.wait_for(20)
    dying.kill()
    caller.join(20)
    assert answers == [[ANSWER] * 40]
    assert len(other.bodies) == 40
    assert ids_of(engine, 5) == [ANSWER] * 5
    assert engine.pool.servers[-1].url == other.url


def test_the_first_cause_is_told_when_no_server_is_left(fake: Any) -> None:
    first, second = fake(always=503), fake(always="hold")
    first.healthy = False
    lost: list[int] = []
    engine = engine_of(first, second, on_lost=lambda index, cause: bool(lost.append(index)), retries=1)
    failures: list[Exception] = []

    def call() -> None:
        try:
            engine.generate([REQUEST] * 2, GREEDY)
        except EngineError as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    second.wait_for(2)
    second.kill()
    caller.join(20)
    deadline = time.monotonic() + 20
    while engine.pool.servers and time.monotonic() < deadline:
        time.sleep(0.01)
    cause = rf"no SGLang server is left; the first was lost because {first.url}/generate answered 503: no such luck"
    with pytest.raises(EngineError, match=rf"{cause}\n  {second.url}/generate: "):
        engine.generate([REQUEST], GREEDY)
    assert lost == [0, 1]
    assert len(failures) == 1


def test_a_server_taken_out_hands_over_what_it_was_doing(fake: Any) -> None:
    """As when it was stopped and would never answer."""
    stopped, other = fake(always="hold"), fake()
    engine = engine_of(stopped, other)
    answers: list[list[list[int]]] = []
    caller = threading.Thread(target=lambda: answers.append(ids_of(engine, 10)))
    caller.start()
    stopped.wait_for(5)
    engine.pool.gone(0, EngineError("it was stopped"))
    caller.join(20)
    assert answers == [[ANSWER] * 10]
    assert len(other.bodies) == 10


def test_requests_wait_for_a_server_that_somebody_brings_back_elsewhere(fake: Any) -> None:
    server, heir = fake(always="reset"), fake()
    server.healthy = False
    asked = threading.Event()

    def restart(index: int, cause: EngineError) -> bool:
        assert (index, server.url in str(cause)) == (0, True)
        asked.set()
        return True

    engine = engine_of(server, on_lost=restart, retries=1)
    answers: list[list[list[int]]] = []
    caller = threading.Thread(target=lambda: answers.append(ids_of(engine)))
    caller.start()
    assert asked.wait(20)
    engine.pool.back(0, heir.url)
    caller.join(20)
    assert answers == [[ANSWER]]
    assert [s.url for s in engine.pool.servers] == [heir.url]


def test_requests_end_when_a_server_does_not_come_back_after_all(fake: Any) -> None:
    server = fake(always="hold")
    engine = engine_of(server)

    def give_up() -> None:
        server.wait_for(1)
        engine.pool.lost(0, EngineError("it was stopped"))
        engine.pool.gone(0, EngineError("it would not start"))

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(EngineError, match="the first was lost because it was stopped\n  it would not start"):
        ids_of(engine)
    thread.join()


def test_no_more_requests_are_under_way_than_allowed_and_the_least_loaded_server_is_asked(fake: Any) -> None:
    servers = [fake(always="hold"), fake(always="hold")]
    engine = engine_of(*servers, concurrency=3)
    answers: list[list[list[int]]] = []
    caller = threading.Thread(target=lambda: answers.append(ids_of(engine, 20)))
    caller.start()
    for server in servers:
        server.wait_for(3)
    assert [len(server.bodies) for server in servers] == [3, 3]
    for server in servers:
        server.release()
    caller.join(20)
    assert answers == [[ANSWER] * 20]
    assert max(server.most_running for server in servers) == 3


def test_connections_are_used_again(fake: Any) -> None:
    server = fake()
    engine = engine_of(server, concurrency=4)
    ids_of(engine, 60)
    ids_of(engine, 60)
    assert len(server.bodies) == 120
    assert len(server.connections) <= 8


def test_what_is_sent(fake: Any) -> None:
    server = fake()
    engine = SGLangEngine(ServerPool([SGLangServer(server.url + "/", key="secret")]), [9, 0, 9], VOCABULARY)
    engine.generate([GenerationRequest([2, 3], [5, -1])], SamplingParams(3, 1.0, top_p=0.5, top_k=4))
    first, second = sorted(server.bodies, key=lambda body: body["sampling_params"]["sampling_seed"])
    assert first["sampling_params"] == {
        **{"max_new_tokens": 3, "temperature": 1.0, "top_p": 0.5, "top_k": 4},
        **{"stop_token_ids": [0, 9], "sampling_seed": 5},
    }
    assert second["sampling_params"]["sampling_seed"] == 2**63 - 1
    assert first["rid"] != second["rid"]
    assert len(first["rid"]) == len(second["rid"])
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_a_request_that_is_sent_again_has_another_name(fake: Any) -> None:
    """A server may still be at work on the first."""
    server = fake(503)
    ids_of(engine_of(server))
    assert len({body["rid"] for body in server.bodies}) == 2


def test_stops_and_versions_are_read(fake: Any) -> None:
    server = fake(
        with_meta(weight_versions=[{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 3}])
    )
    engine = SGLangEngine(ServerPool([SGLangServer(server.url)]), [6], VOCABULARY)
    ((mixed,),) = engine.generate([GenerationRequest([1, 0], [1])], GREEDY)
    assert (mixed.ids, mixed.finish, mixed.weight_versions) == ([1, 2, 3], "length", ["1", "1", "2"])
    ((stopped,),) = engine.generate([REQUEST], GREEDY)
    assert (stopped.ids, stopped.finish, stopped.weight_versions) == ([5, 6], "stop", ["3", "3"])


def test_an_abort_returns_what_there_was(fake: Any) -> None:
    server = fake("hold", "hold")
    engine = engine_of(server, concurrency=2)
    with engine.start([GenerationRequest([2, 3], [1, 2]), REQUEST], GREEDY) as batch:
        server.wait_for(2)
        rest = batch.abort()
    assert [[answer.finish for answer in rest[index]] for index in (0, 1)] == [["abort", "abort"], ["abort"]]
    assert [answer.ids for answer in rest[0]] == [[5], [5]]
    assert rest[1][0].ids == []
    assert ids_of(engine) == [ANSWER]


def test_an_abort_reaches_those_that_wait_for_a_server_that_is_brought_back(fake: Any) -> None:
    server = fake("hold")
    engine = engine_of(server)
    with engine.start([REQUEST, REQUEST], GREEDY) as batch:
        server.wait_for(2)
        engine.pool.lost(0, EngineError("it is being replaced"))
        rest = batch.abort()
    assert [[(answer.ids, answer.finish) for answer in rest[index]] for index in rest] in (
        [[([], "abort")]] * 2,
        [[(ANSWER, "length")], [([], "abort")]],
    )
    engine.pool.back(0, server.url)
    assert ids_of(engine) == [ANSWER]


def test_an_interrupt_ends_the_call_and_leaves_the_engine_usable(fake: Any) -> None:
    server = fake("hold")
    engine = engine_of(server, concurrency=1)

    def interrupt() -> None:
        server.wait_for(1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        engine.generate([REQUEST] * 5, GREEDY)
    thread.join()
    assert ids_of(engine, 3) == [ANSWER] * 3
    assert len(server.bodies) == 4


def test_what_would_kill_a_server_is_not_sent(fake: Any) -> None:
    server = fake()
    engine = engine_of(server)
    with pytest.raises(ConfigError, match="prompt 0: the token id 14 was not sent; the server's model has 0 to 13"):
        engine.generate([GenerationRequest([2, 14], [1])], GREEDY)
    with pytest.raises(ConfigError, match="prompt 0 has no token"):
        engine.generate([GenerationRequest([], [1])], GREEDY)
    with pytest.raises(ConfigError, match="sample 0: the token id -1 was not sent"):
        engine.score([Sample(index=0, tokens=[-1, 3], response_length=1)], 0, 1.0)
    with pytest.raises(ConfigError, match="the ids asked for at sample 0: the token id 14 was not sent"):
        engine.query([SAMPLE], [[[14]] * 3], 1.0)
    assert not server.bodies


def test_nothing_is_asked_for_nothing(fake: Any) -> None:
    engine = engine_of(fake())
    assert engine.generate([], GREEDY) == []
    assert engine.generate([GenerationRequest([2], [])], GREEDY) == [[]]
    assert engine.score([], 0, 1.0) == []


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://host", "http://", "http://host:port", "/generate"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL of an SGLang server"):
        SGLangServer(url)


def test_a_list_of_servers_is_read_or_refused() -> None:
    assert [s.url for s in servers_of("--sglang-url", "http://a:1/, http://b:2,")] == ["http://a:1", "http://b:2"]
    for urls in (None, "", " , "):
        with pytest.raises(ConfigError, match="name the SGLang servers with --sglang-url"):
            servers_of("--sglang-url", urls)
    with pytest.raises(ConfigError, match="--sglang-url names http://a:1 twice"):
        servers_of("--sglang-url", "http://a:1,http://a:1/")
