"""More groups are begun than are needed: the rest is stopped, goes on in the next rollout, and none is lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from stacx_core import ConfigError, Sample, SampleStatus, SamplingParams
from stacx_core.backends.tokenizers import load_tokenizer
from stacx_core.data.prompts import PromptRow
from stacx_core.errors import EngineError
from stacx_core.rollout.engine import Generation, GenerationRequest
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.oversampling import PromptGroup
from stacx_core.rollout.sampled import SampledRollout
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool
from stacx_core.rollout.sglang.server import SGLangServer

VOCABULARY = 14
FIRST, SECOND, THIRD, FOURTH = ([2, 12, 2 + b, 13] for b in range(4))
"""Prompts 0+0=, 0+1=, 0+2= and 0+3=, which the fake answers with ids that begin at 1, 2, 3 and 4."""
FIFTH = [3, 12, 2, 13]
NUMBERS = [(0, 0, 0), (0, 1, 1), (1, 2, 2), (1, 3, 3)]
"""Group, index and rollout id of the samples of two groups of two."""


def engine_of(*servers: Any) -> SGLangEngine:
    pool = ServerPool([SGLangServer(server.url) for server in servers], Limits(retries=2, retry_wait=0.01, timeout=10))
    return SGLangEngine(pool, [0], VOCABULARY)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(checkpoint))


@pytest.fixture
def roll_in(sums: Path, tokenizer: PreTrainedTokenizerBase, host_args: Any) -> Callable[..., SampledRollout]:
    """Two groups of two wanted and three begun, in the order of the file, with three tokens at most."""

    def make(**given: Any) -> SampledRollout:
        args = {"over_sampling_batch_size": 3, "rollout_batch_size": 2, "n_samples_per_prompt": 2, **given}
        args = {"rollout_max_response_len": 3, "rollout_shuffle": False, "label_key": "label", **args}
        return SampledRollout(host_args(prompt_data=str(sums), rollout_engine="sglang", **args), tokenizer, None)

    return make


def is_of(prompt: list[int], seed: int | None = None) -> Callable[[dict[str, Any]], bool]:
    """Whether a request is of a prompt, and of one response if its seed is given."""

    def test(body: dict[str, Any]) -> bool:
        asked = body["sampling_params"]["sampling_seed"]
        return body["input_ids"][:4] == prompt and (seed is None or asked == seed)

    return test


def responses(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens[sample.prompt_length :] for sample in samples]


def roll(roll_in: SampledRollout, server: Any, rollout: int, requests: int) -> Any:
    """A rollout by a server which has the weights of this rollout and waits until all requests are there."""
    server.label, server.awaited = str(rollout), len(server.bodies) + requests
    return roll_in.roll(rollout, engine_of(server))


def test_the_slowest_is_stopped_and_its_prompt_comes_first_next_time(fake: Any, roll_in: Any) -> None:
    server, rollouts = fake(slow=is_of(SECOND)), roll_in()
    rolled = roll(rollouts, server, 0, 6)
    assert [sample.tokens[:4] for sample in rolled.samples] == [FIRST, FIRST, THIRD, THIRD]
    assert [(s.group_index, s.index, s.rollout_id) for s in rolled.samples] == NUMBERS
    assert rolled.metrics == {"dropped_rows": 0.0, "aborted_responses": 2.0}
    server.slow = lambda body: False
    seeds = {body["sampling_params"]["sampling_seed"] for body in server.bodies}
    rolled = roll(rollouts, server, 1, 6)
    assert all(len(body["input_ids"]) == 4 for body in server.bodies)
    assert not seeds & {body["sampling_params"]["sampling_seed"] for body in server.bodies[6:]}
    assert [body["input_ids"] for body in server.bodies[6:]].count(SECOND) == 2


def test_what_was_stopped_goes_on_with_other_weights(fake: Any, roll_in: Any) -> None:
    """2 was sampled by weights 0; behind 0+1=2 the sum of the ids is 32, and 32 mod 14 is 4."""
    server, rollouts = fake(slow=is_of(SECOND)), roll_in(partial_rollout=True)
    rolled = roll(rollouts, server, 0, 6)
    assert rolled.metrics["partial_responses"] == rolled.metrics["offpolicy_token_frac"] == 0.0
    assert {tuple(sample.token_versions or ()) for sample in rolled.samples} == {("0", "0", "0")}
    begun = [body for body in server.bodies if body["input_ids"] == SECOND]
    server.slow = is_of(FOURTH)
    rolled = roll(rollouts, server, 1, 6)
    going_on = [body for body in server.bodies[6:] if body["input_ids"] == [*SECOND, 2]]
    assert [body["sampling_params"]["max_new_tokens"] for body in going_on] == [2, 2]
    seeds = [sorted(body["sampling_params"]["sampling_seed"] for body in bodies) for bodies in (begun, going_on)]
    assert seeds[0] == seeds[1]
    first, second, *_ = rolled.samples
    assert responses([first, second]) == [[2, 4, 5], [2, 4, 5]]
    assert (first.token_versions, first.weight_versions) == (["0", "1", "1"], ["0", "1"])
    assert len(first.rollout_log_probs or ()) == 3
    assert (first.mask, first.status) == ([1, 1, 1], SampleStatus.TRUNCATED)
    assert [sample.index for sample in rolled.samples] == [0, 1, 2, 3]
    assert rolled.metrics == {
        **{"dropped_rows": 0.0, "aborted_responses": 2.0, "partial_responses": 2.0},
        **{"offpolicy_token_frac": 2 / 12, "weight_age_mean": 2 / 12},
    }


def test_tokens_of_older_weights_are_masked(fake: Any, roll_in: Any) -> None:
    server = fake(slow=is_of(SECOND))
    rollouts = roll_in(partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
    roll(rollouts, server, 0, 6)
    server.slow = is_of(FOURTH)
    samples = roll(rollouts, server, 1, 6).samples
    assert [sample.mask for sample in samples] == [[0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert all(log_prob < 0 for sample in samples for log_prob in sample.rollout_log_probs or ())


@pytest.mark.parametrize("masked", [False, True])
def test_a_group_that_ended_unneeded_is_answered_anew_where_its_tokens_would_be_masked(
    roll_in: Any, masked: bool
) -> None:
    left = roll_in(partial_rollout=True, mask_offpolicy_in_partial_rollout=masked).leftovers
    ended, stopped = Generation([2], [-1.0], "stop", ["0"]), Generation([2], [-1.0], "abort", ["0"])
    groups = [
        PromptGroup(PromptRow("0+0=", "0", i), FIRST, [1, 2], [ended, end]) for i, end in enumerate((ended, stopped))
    ]
    left.put(groups)
    assert left.take(2) == [PromptGroup(groups[0].row) if masked else groups[0], groups[1]]


def test_a_response_may_be_stopped_again_and_again(fake: Any, roll_in: Any) -> None:
    """One token each time: 2, then 4, then 8 behind 0+1=24, and that is the limit."""
    server, rollouts = fake(slow=is_of(SECOND)), roll_in(partial_rollout=True)
    roll(rollouts, server, 0, 6)
    roll(rollouts, server, 1, 6)
    server.slow = is_of([3, 12, 4, 13])
    first, *_ = rolled = roll(rollouts, server, 2, 6).samples
    assert (responses([first]), first.token_versions) == ([[2, 4, 8]], ["0", "1", "2"])
    assert first.weight_versions == ["0", "1", "2"]
    assert len(rolled) == 4


def test_only_the_response_that_was_stopped_goes_on(fake: Any, roll_in: Any) -> None:
    server, rollouts = fake(), roll_in(partial_rollout=True)
    seeds: list[int] = []

    def slow(body: dict[str, Any]) -> bool:
        if body["input_ids"] == SECOND and not seeds:
            seeds.append(body["sampling_params"]["sampling_seed"])
        return is_of(SECOND)(body) and body["sampling_params"]["sampling_seed"] in seeds

    server.slow = slow
    assert roll(rollouts, server, 0, 6).metrics["aborted_responses"] == 1.0
    server.slow = is_of(FOURTH)
    samples = roll(rollouts, server, 1, 5).samples
    assert sorted(responses(samples[:2])) == [[2, 3, 4], [2, 4, 5]]
    assert sorted(sample.token_versions or [] for sample in samples[:2]) == [["0", "0", "0"], ["0", "1", "1"]]


@pytest.mark.parametrize("partial", [False, True])
def test_a_resumed_run_goes_on_with_what_was_stopped(fake: Any, roll_in: Any, partial: bool) -> None:
    server, rollouts = fake(slow=is_of(SECOND)), roll_in(partial_rollout=partial)
    roll(rollouts, server, 0, 6)
    state = json.loads(json.dumps(rollouts.state()))
    resumed = roll_in(partial_rollout=partial)
    resumed.restore(state)
    assert resumed.state() == state
    server.slow = is_of(FOURTH)
    expected = roll(rollouts, server, 1, 6)
    got = roll(resumed, server, 1, 6)
    assert got == expected
    assert [sample.tokens[:4] for sample in got.samples] == [SECOND, SECOND, FIFTH, FIFTH]


def test_responses_are_begun_anew_where_a_resumed_run_cannot_go_on_with_them(fake: Any, roll_in: Any) -> None:
    server, rollouts = fake(slow=is_of(SECOND)), roll_in(partial_rollout=True)
    roll(rollouts, server, 0, 6)
    for other in ({"n_samples_per_prompt": 1, "partial_rollout": True}, {"partial_rollout": False}):
        resumed = roll_in(**other)
        resumed.restore(rollouts.state())
        assert [(left["row"], left["answers"]) for left in resumed.state()["leftovers"]] == [(1, [])]
    shorter = roll_in(partial_rollout=True, rollout_max_response_len=1)
    shorter.restore(rollouts.state())
    server.slow = is_of(FOURTH)
    assert responses(roll(shorter, server, 1, 4).samples)[:2] == [[2], [2]]


def test_a_state_of_a_run_without_over_sampling_is_taken(roll_in: Any) -> None:
    rollouts = roll_in()
    rollouts.restore(rollouts.stream.state())
    assert rollouts.state()["leftovers"] == []


def test_each_round_begins_as_many_until_enough_passed(fake: Any, roll_in: Any) -> None:
    """Odd sums pass: 0+1 of the first three, 0+3 of the next, of which 1+0 and 1+1 are slow."""
    rollouts = roll_in(dynamic_sampling_filter="reward_std")
    rollouts.keep = lambda group: int(group[0].label) % 2 == 1
    server = fake(slow=lambda body: body["input_ids"][0] == 3)
    rolled = rollouts.roll(0, engine_of(server))
    assert [sample.tokens[:4] for sample in rolled.samples] == [SECOND, SECOND, FOURTH, FOURTH]
    assert [(s.group_index, s.index, s.rollout_id) for s in rolled.samples] == NUMBERS
    assert rolled.metrics == {
        **{"dropped_rows": 0.0, "aborted_responses": 4.0},
        **{"sampling_rounds": 2.0, "filtered_groups": 2.0},
    }
    assert [group["row"] for group in rollouts.state()["leftovers"]] == [4, 5]


@pytest.mark.parametrize("partial", [False, True])
def test_no_prompt_is_lost_or_trained_twice(fake: Any, roll_in: Any, partial: bool) -> None:
    """Of five groups two are wanted, and any three are slow: in seven rollouts 14 are trained and 3 left over."""
    rollouts, server = roll_in(partial_rollout=partial, over_sampling_batch_size=5), fake()
    trained: list[str] = []
    for rollout in range(7):
        arrived: list[list[int]] = []

        def slow(body: dict[str, Any], arrived: list[list[int]] = arrived) -> bool:
            prompt = body["input_ids"][:4]
            if prompt not in arrived:
                arrived.append(prompt)
            return arrived.index(prompt) % 2 == 0

        server.slow, server.label = slow, str(rollout)
        samples = rollouts.roll(rollout, engine_of(server)).samples
        assert [(s.group_index, s.index, s.rollout_id) for s in samples] == NUMBERS
        assert [sample.task_id for sample in samples[::2]] == [sample.task_id for sample in samples[1::2]]
        trained += [sample.task_id for sample in samples[::2]]
    left = [str(group["row"]) for group in rollouts.state()["leftovers"]]
    assert Counter(trained + left) == Counter(str(row % 12) for row in range(17))
    assert len(left) == 3


def test_a_token_that_ends_a_response_ends_it_though_it_was_aborted(fake: Any) -> None:
    """A server that aborts does not look for the end: 14 mod 14 is the end token, 15 mod 14 the last of one."""
    server = fake(slow=lambda body: True)
    engine = engine_of(server)
    with engine.start([GenerationRequest([13, 1], [1]), GenerationRequest([13, 2], [1])], SamplingParams(2)) as batch:
        server.wait_for(2)
        rest = batch.abort()
    assert [(rest[i][0].ids, rest[i][0].finish) for i in (0, 1)] == [([0], "stop"), ([1], "abort")]
    with engine.start([GenerationRequest([13, 2], [1], rest[1])], SamplingParams(2)) as batch:
        server.wait_for(3)
        rest = batch.abort()
    assert [(answer.ids, answer.finish) for answer in rest[0]] == [([1, 2], "length")]


def test_a_response_that_had_ended_is_not_asked_for(fake: Any) -> None:
    server = fake()
    ended = Generation([0], [-1.0], "stop", ["0"])
    with engine_of(server).start([GenerationRequest([2], [1], [ended])], SamplingParams(3)) as batch:
        assert dict(batch) == {0: [ended]}
    assert not server.bodies


def test_an_id_beyond_the_vocabulary_is_not_gone_on_from(fake: Any) -> None:
    begun = Generation([VOCABULARY], [-1.0], "abort", ["0"])
    with pytest.raises(ConfigError, match="prompt 0: the token id 14 was not sent"):
        engine_of(fake()).start([GenerationRequest([2], [1], [begun])], SamplingParams(3))


def test_an_engine_that_was_stopped_by_somebody_else_gives_no_rollout(fake: Any, roll_in: Any) -> None:
    server = fake(slow=lambda body: True)
    engine = engine_of(server)

    def stop() -> None:
        server.wait_for(6)
        engine.abort()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(EngineError, match="aborted before all its responses"):
        roll_in().roll(0, engine)
    thread.join()


def test_the_embedded_engine_cannot_be_stopped(roll_in: Any) -> None:
    with pytest.raises(ConfigError, match="LocalEngine cannot be stopped half-way; drop --over-sampling-batch-size"):
        roll_in().roll(0, LocalEngine(None, [0], 1))  # type: ignore[arg-type]
