"""The engine on a real server, against the embedded engine and the trainer's forward."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import ConfigError, Sample, SamplingParams
from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import forward, load_model
from stacx_core.errors import EngineError
from stacx_core.rollout.engine import GenerationRequest
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool
from stacx_core.rollout.sglang.probe import Scaling
from stacx_core.rollout.sglang.server import ServerRefused, SGLangServer

END, VOCABULARY, CONTEXT = 0, 97, 256
NEVER: list[int] = []


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    source = random.Random(0)
    return [[source.randrange(2, VOCABULARY) for _ in range(source.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    return load_model(str(llama), torch.float32, torch.device("cpu"))


@pytest.fixture
def pool(llama: Path, sglang_server: Callable[..., Any]) -> ServerPool:
    return ServerPool([SGLangServer(sglang_server(llama).url)], Limits(retries=1, timeout=60))


@pytest.fixture
def engine(pool: ServerPool) -> Iterator[SGLangEngine]:
    engine = SGLangEngine(pool, [END], VOCABULARY)
    yield engine
    engine.close()


def rows(model: Any, ids: list[int], count: int, temperature: float) -> Tensor:
    """Log-probs ``[count, V]`` of the last tokens as the trainer computes them."""
    layout = PackedLayout([len(ids)], torch.device("cpu"))
    with torch.no_grad():
        logits = forward(model, torch.tensor([ids]), torch.arange(len(ids))[None], layout)[0]
    return (logits[-count - 1 : -1] / temperature).log_softmax(-1)


def test_greedy_decoding_gives_the_ids_of_the_embedded_engine(engine: SGLangEngine, model: Any) -> None:
    requests = [GenerationRequest(prompt, [0]) for prompt in prompts(50)]
    greedy = SamplingParams(24, temperature=0)
    expected = LocalEngine(model, [END], 50).generate(requests, greedy)
    for (answer,), (other,) in zip(engine.generate(requests, greedy), expected, strict=True):
        assert (answer.ids, answer.finish) == (other.ids, other.finish)
        assert answer.log_probs == pytest.approx(other.log_probs, abs=1e-4)
        assert set(answer.weight_versions) == {"default"}
        assert len(answer.weight_versions) == len(answer.ids)


@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.6}, {"top_k": 4}])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probs_are_the_trainers(
    engine: SGLangEngine, model: Any, temperature: float, truncation: Any
) -> None:
    """Under the full softmax at the temperature, whatever was cut off in sampling."""
    requests = [GenerationRequest(prompt, [1, 2]) for prompt in prompts(10)]
    params = SamplingParams(16, temperature=temperature, **truncation)
    for request, group in zip(requests, engine.generate(requests, params), strict=True):
        assert len(group) == 2
        for answer in group:
            log_probs = rows(model, [*request.prompt, *answer.ids], len(answer.ids), temperature)
            expected = log_probs[range(len(answer.ids)), answer.ids]
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-4, rtol=0)


def test_temperatures_may_differ_at_a_time(engine: SGLangEngine, model: Any) -> None:
    requests = [GenerationRequest(prompt, [1]) for prompt in prompts(8)]
    batches = {t: engine.start(requests, SamplingParams(16, temperature=t)) for t in (0.0, 0.5, 1.0)}
    for temperature, batch in batches.items():
        with batch:
            for index, (answer,) in batch:
                ids = [*requests[index].prompt, *answer.ids]
                log_probs = rows(model, ids, len(answer.ids), temperature or 1.0)[range(len(answer.ids)), answer.ids]
                torch.testing.assert_close(torch.tensor(answer.log_probs), log_probs, atol=1e-4, rtol=0)


def test_the_last_id_of_the_vocabulary_keeps_its_log_prob(engine: SGLangEngine, model: Any) -> None:
    """Asked after the prompt that makes it likeliest."""
    last = VOCABULARY - 1
    prompt = max(prompts(200), key=lambda ids: float(rows(model, [*ids, last], 1, 1.0)[0, last]))
    (group,) = engine.generate([GenerationRequest(prompt, range(100))], SamplingParams(1))
    (expected,) = rows(model, [*prompt, last], 1, 1.0)
    assert expected[last].exp() > 0.2
    assert last in {answer.ids[0] for answer in group}
    for answer in group:
        assert answer.log_probs[0] == pytest.approx(float(expected[answer.ids[0]]), abs=1e-4)


def test_a_stop_id_ends_a_response_and_is_kept(pool: ServerPool) -> None:
    stops = [END, *range(40, 60)]
    requests = [GenerationRequest(prompt, [1, 2]) for prompt in prompts(40)]
    groups = SGLangEngine(pool, stops, VOCABULARY).generate(requests, SamplingParams(4))
    answers = [answer for group in groups for answer in group]
    assert {answer.finish for answer in answers} == {"stop", "length"}
    for answer in answers:
        assert len(answer.ids) == len(answer.log_probs)
        assert not set(stops) & set(answer.ids[:-1])
        assert (answer.ids[-1] in stops) == (answer.finish == "stop")
        assert answer.finish == "stop" or len(answer.ids) == 4


def test_a_prompt_that_leaves_too_little_room_is_refused_by_name(engine: SGLangEngine) -> None:
    request = GenerationRequest([5] * (CONTEXT - 8), [1])
    with pytest.raises(ServerRefused, match=r"http://127.*/generate answered 400: .*256"):
        engine.generate([request], SamplingParams(16))


def test_an_abort_stops_what_runs_and_finishes_nothing(pool: ServerPool, model: Any) -> None:
    """The rest is handed out by name: groups that were done, what there was of the others, and nothing of the last."""
    engine = SGLangEngine(pool, NEVER, VOCABULARY)
    requests = [GenerationRequest(prompt, [1, 2]) for prompt in prompts(30, longest=4)]
    with engine.start(requests, SamplingParams(240, temperature=0.9)) as batch:
        finished = dict([next(iter(batch))])
        rest = batch.abort()
    assert sorted([*finished, *rest]) == list(range(30))
    assert all(answer.finish != "abort" for group in finished.values() for answer in group)
    stopped = [(i, answer) for i, group in rest.items() for answer in group if answer.finish == "abort"]
    assert any(answer.ids for _, answer in stopped)
    assert any(not answer.ids for _, answer in stopped)
    for index, answer in stopped:
        assert len(answer.ids) < 240
        if answer.ids:
            ids = [*requests[index].prompt, *answer.ids]
            log_probs = rows(model, ids, len(answer.ids), 0.9)[range(len(answer.ids)), answer.ids]
            torch.testing.assert_close(torch.tensor(answer.log_probs), log_probs, atol=1e-4, rtol=0)
    assert engine.generate(requests[:1], SamplingParams(4))[0][0].ids


def test_a_generation_aborted_from_another_thread_raises(pool: ServerPool) -> None:
    """Two thousand responses are not made in half a second, eight at a time."""
    engine = SGLangEngine(pool, NEVER, VOCABULARY)
    timer = threading.Timer(0.5, engine.abort)
    timer.start()
    with pytest.raises(EngineError, match="aborted"):
        engine.generate([GenerationRequest([5], range(2000))], SamplingParams(250))
    timer.join()


def test_log_probs_are_measured_to_be_at_the_sampling_temperature(engine: SGLangEngine) -> None:
    assert engine.scaling == Scaling(inputs=False, outputs=True)


def test_a_server_whose_log_probs_ignore_the_temperature_is_refused(
    llama: Path, sglang_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    server = sglang_server(llama, number=7)
    engine = SGLangEngine(ServerPool([SGLangServer(server.url)]), [END], VOCABULARY)
    requests = [GenerationRequest([5, 6], [1])]
    assert engine.scaling == Scaling(inputs=False, outputs=False)
    assert engine.generate(requests, SamplingParams(2))
    with pytest.raises(ConfigError, match=r"tell log-probs at temperature 1, whatever they sample at, here 0\.7"):
        engine.generate(requests, SamplingParams(2, temperature=0.7))
    server.end()


def test_what_would_kill_the_server_is_not_sent(engine: SGLangEngine) -> None:
    for wrong in (VOCABULARY, -1):
        with pytest.raises(ConfigError, match=f"prompt 1: the token id {wrong} was not sent; .* has 0 to 96"):
            engine.generate([GenerationRequest([5], [1]), GenerationRequest([5, wrong], [1])], SamplingParams(2))
        with pytest.raises(ConfigError, match=f"sample 3: the token id {wrong} was not sent"):
            engine.score([Sample(index=3, tokens=[5, wrong], response_length=1)], 0, 1.0)
        with pytest.raises(ConfigError, match=f"the token id {wrong} was not sent"):
            engine.query([Sample(index=3, tokens=[5, 6], response_length=1)], [[[wrong]]], 1.0)
    with pytest.raises(ConfigError, match="prompt 0 has no token"):
        engine.generate([GenerationRequest([], [1])], SamplingParams(2))
    assert engine.generate([GenerationRequest([5], [1])], SamplingParams(2))[0][0].ids


def test_the_engine_scores_with_the_policys_weights(engine: SGLangEngine, model: Any) -> None:
    samples = [Sample(index=i, tokens=[*p, 5, VOCABULARY - 1], response_length=2) for i, p in enumerate(prompts(6))]
    local = LocalEngine(model, [END], 8)
    for score, other in zip(engine.score(samples, 200, 1.0), local.score(samples, 200, 1.0), strict=True):
        assert score.log_probs == pytest.approx(other.log_probs, abs=1e-4)
        assert score.topk_ids == other.topk_ids
    with pytest.raises(ConfigError, match=r"at temperature 1 only, and the run is at 0\.7"):
        engine.score(samples, 0, 0.7)
