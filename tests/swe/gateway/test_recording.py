"""What is recorded of plain, streamed, tool-calling, rewritten and parallel sessions, over real HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import BASH, TASK, TEMPLATE, Policy, Remembering, Scripted, chat_tokenizer
from stacx_core.data.sample import Sample


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def message_of(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]["message"]


def trained(samples: list[Sample]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Each stretch of trained ids with the log-probs beside it."""
    stretches: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
    for sample in samples:
        sample.validate()
        assert sample.rollout_log_probs is not None
        assert sample.turn_ids is not None
        rows = list(zip(sample.tokens[sample.prompt_length :], sample.mask, sample.rollout_log_probs, strict=True))
        assert all(log_prob == 0.0 for _, mask, log_prob in rows if not mask)
        for turn in sorted({turn for turn in sample.turn_ids if turn >= 0}):
            own = [row for row, number in zip(rows, sample.turn_ids, strict=True) if number == turn]
            assert all(mask for _, mask, _ in own)
            stretches.append((tuple(i for i, _, _ in own), tuple(p for _, _, p in own)))
        assert sum(sample.mask) == sum(number >= 0 for number in sample.turn_ids)
    return stretches


def returned(engine: Remembering) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(tuple(answer.ids), tuple(answer.log_probs)) for _, answer in engine.said]


def test_a_conversation_with_the_policy_is_one_sample_of_the_very_ids(
    serve: Any, chat: Any, chat_checkpoint: Path
) -> None:
    """What a random model says is mostly no text at all, so any id that went through text would be another."""
    engine = Policy(chat_checkpoint)
    gateway = serve(engine)
    session = gateway.open(TASK, rollout=7)
    messages = [user("a task")]
    for number in range(3):
        answer = chat(gateway, session, messages)
        prompt, generation = engine.said[-1]
        assert answer.json["usage"] == {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(generation.ids),
            "total_tokens": len(prompt) + len(generation.ids),
        }
        messages += [message_of(answer), user(f"go on {number}")]
    episode = gateway.finish(session, reward=0.5)
    (sample,) = episode.samples(group=4, first_index=9)
    assert trained([sample]) == returned(engine)
    last_prompt, last = engine.said[-1]
    assert sample.tokens == [*last_prompt, *last.ids]
    for earlier, later in zip(engine.said, engine.said[1:], strict=False):
        said = [*earlier[0], *earlier[1].ids]
        assert later[0][: len(said)] == said
    assert sample.turn_ids is not None
    assert sorted(set(sample.turn_ids)) == [-1, 0, 1, 2]
    assert sample.executor is not None
    assert [int(number > 0) for number in sample.executor] == sample.mask
    assert (sample.reward, sample.task_id, sample.rollout_id, sample.weight_versions) == (0.5, "fix/3", 9, ["7"] * 3)


def test_between_two_answers_stand_the_ids_of_the_template(serve: Any, chat: Any, tokenizer: Any) -> None:
    engine = Scripted(lambda prompt: "abab", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)
    first = message_of(chat(gateway, session, [user("one")]))
    chat(gateway, session, [user("one"), first, user("two")])
    (sample,) = gateway.finish(session, 0.0).samples(0, 0)
    whole = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nabab<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
    assert tokenizer.decode(sample.tokens) == f"{whole}<|im_start|>assistant\nabab<|im_end|>"
    assert sample.mask == [1, 1, 1] + [0] * len("\n.user\ntwo.\n.assistant\n") + [1, 1, 1]
    assert sample.response == "abab\nabab"


def test_a_streamed_answer_is_the_whole_one_in_pieces(serve: Any, chat: Any, tokenizer: Any) -> None:
    engine = Scripted(lambda prompt: " one  two\n", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)
    events = chat(gateway, session, [user("go")], stream=True, stream_options={"include_usage": True}).events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    *pieces, counted = events
    assert counted["choices"] == []
    assert counted["usage"]["completion_tokens"] == 11
    assert [piece["usage"] for piece in pieces] == [None] * len(pieces)
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta.get("content") for delta in deltas[1:]] == [" one", "  two", "\n", None]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 4 + ["stop"]
    chat(gateway, session, [user("go"), {"role": "assistant", "content": " one  two\n"}, user("on")], stream=True)
    (sample,) = gateway.finish(session, 0.0).samples(0, 0)
    assert trained([sample]) == returned(engine)


def test_a_tool_call_is_told_as_one_and_recorded_as_it_was_written(serve: Any, chat: Any, tokenizer: Any) -> None:
    """The spaces of its JSON are the model's, whatever the template would write."""
    call = 'First look.\n<tool_call>{"name":"bash",  "arguments":{"command":"ls"}}</tool_call>'
    engine = Scripted(lambda prompt: "done" if "tool_response" in prompt else call, tokenizer)
    gateway = serve(engine, max_new_tokens=100)
    session = gateway.open(TASK)
    answer = chat(gateway, session, [user("go")], tools=[BASH])
    message = message_of(answer)
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
    assert message["content"] == "First look."
    (told,) = message["tool_calls"]
    assert told["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    result = {"role": "tool", "tool_call_id": told["id"], "content": "a.py"}
    last = chat(gateway, session, [user("go"), message, result], tools=[BASH])
    assert message_of(last)["content"] == "done"
    (sample,) = gateway.finish(session, 1.0).samples(0, 0)
    assert trained([sample]) == returned(engine)
    assert call in tokenizer.decode(sample.tokens)
    assert "<tool_response>\na.py\n</tool_response>" in tokenizer.decode(sample.tokens)


def test_a_streamed_tool_call(serve: Any, chat: Any, tokenizer: Any) -> None:
    call = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    gateway = serve(Scripted(lambda prompt: call, tokenizer), max_new_tokens=100)
    session = gateway.open(TASK)
    events = chat(gateway, session, [user("go")], tools=[BASH], stream=True).events
    (delta,) = [event["choices"][0]["delta"] for event in events if "tool_calls" in event["choices"][0]["delta"]]
    assert delta["tool_calls"][0]["index"] == 0
    assert delta["tool_calls"][0]["function"] == {"name": "bash", "arguments": "{}"}
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all("usage" not in event for event in events)


def test_a_malformed_tool_call_is_content_and_counted(serve: Any, chat: Any, tokenizer: Any) -> None:
    broken = '<tool_call>{"name": "bash"</tool_call>'
    engine = Scripted(lambda prompt: broken, tokenizer)
    gateway = serve(engine, max_new_tokens=100)
    session = gateway.open(TASK)
    answer = chat(gateway, session, [user("go")], tools=[BASH])
    assert message_of(answer)["content"] == broken
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert session.counts["malformed_tool_calls"] == 1


def test_with_tool_choice_none_a_call_is_text(serve: Any, chat: Any, tokenizer: Any) -> None:
    call = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    gateway = serve(Scripted(lambda prompt: call, tokenizer), max_new_tokens=100)
    answer = chat(gateway, gateway.open(TASK), [user("go")], tools=[BASH], tool_choice="none")
    assert message_of(answer)["content"] == call
    assert "tool_calls" not in message_of(answer)


def test_a_rewritten_history_is_a_sibling_of_the_same_run(serve: Any, chat: Any, chat_checkpoint: Path) -> None:
    """The harness cuts the output of its second message out, as harnesses do to save context."""
    engine = Policy(chat_checkpoint)
    gateway = serve(engine)
    session = gateway.open(TASK)
    one = message_of(chat(gateway, session, [user("task")]))
    two = message_of(chat(gateway, session, [user("task"), one, user("long output")]))
    three = message_of(chat(gateway, session, [user("task"), one, user("...")]))
    chat(gateway, session, [user("task"), one, user("..."), three, user("more")])
    episode = gateway.finish(session, 1.0)
    first, second = episode.samples(0, 5)
    prompts, answers = zip(*engine.said, strict=True)
    assert first.tokens == [*prompts[1], *answers[1].ids]
    assert second.tokens == [*prompts[3], *answers[3].ids]
    assert second.tokens[: second.prompt_length] == prompts[2], "what both share is trained in the first only"
    assert prompts[2][: len(prompts[0]) + len(answers[0].ids)] == [*prompts[0], *answers[0].ids]
    assert trained([first, second]) == returned(engine)
    assert (first.rollout_id, second.rollout_id) == (5, 5)
    assert (first.index, second.index) == (5, 6)
    assert two is not None


def test_an_edited_answer_is_no_longer_the_engines(serve: Any, chat: Any, tokenizer: Any) -> None:
    engine = Scripted(lambda prompt: "said", tokenizer)
    gateway = serve(engine)
    session = gateway.open(TASK)
    chat(gateway, session, [user("task")])
    chat(gateway, session, [user("task"), {"role": "assistant", "content": "edited"}, user("on")])
    first, second = gateway.finish(session, 1.0).samples(0, 0)
    assert "edited" in tokenizer.decode(second.tokens[: second.prompt_length])
    assert trained([first, second]) == returned(engine)


def test_thoughts_that_the_template_drops_make_a_sibling(serve: Any, chat: Any) -> None:
    """This template shows the thoughts of an answer until the next message of the user, and not after it."""
    forgetful = chat_tokenizer()
    forgetful.chat_template = "{% set drop_thoughts = true %}" + TEMPLATE
    call = 'hm</think>yes <tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    engine = Scripted(lambda prompt: call, forgetful)
    gateway = serve(engine, max_new_tokens=100, speaks=forgetful)
    session = gateway.open(TASK)
    messages = [user("task")]
    for _ in range(2):
        message = message_of(chat(gateway, session, messages, tools=[BASH]))
        identity = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": identity, "content": "out"}]
    chat(gateway, session, [*messages, user("next")], tools=[BASH])
    first, second = gateway.finish(session, 1.0).samples(0, 0)
    assert trained([first, second]) == returned(engine)
    assert forgetful.decode(first.tokens).count("hm</think>") == 2
    assert forgetful.decode(second.tokens[: second.prompt_length]).count("hm</think>") == 0


@pytest.mark.parametrize("agents", [2, 64])
def test_parallel_agents_are_branches_and_none_is_lost(
    serve: Any, chat: Any, chat_checkpoint: Path, agents: int
) -> None:
    """Sub-agents of one run that ask at once."""
    engine = Policy(chat_checkpoint)
    gateway = serve(engine, max_new_tokens=8)
    session = gateway.open(TASK)
    plan = message_of(chat(gateway, session, [user("plan")]))

    def work(number: int) -> None:
        messages = [user("plan"), plan, user(f"part {number}")]
        first = message_of(chat(gateway, session, messages))
        message_of(chat(gateway, session, [*messages, first, user("check")]))

    with ThreadPoolExecutor(agents) as pool:
        list(pool.map(work, range(agents)))
    episode = gateway.finish(session, 1.0)
    samples = episode.samples(0, 0)
    assert len(samples) == agents
    assert {sample.rollout_id for sample in samples} == {0}
    assert sorted(trained(samples)) == sorted(returned(engine))
    assert len(engine.said) == 1 + 2 * agents
    assert len({tuple(prompt) for prompt, _ in engine.said}) == len(engine.said)
