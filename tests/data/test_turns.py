"""Conversations that grow by appending, against the template's rendering of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stacx_core.data.turns import first_ids, next_ids
from stacx_core.errors import ConfigError, DataError, ModelError

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and '<think>' not in m.content %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENING = SMOLLM2.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")


def made(template: str | None, eos: str | None = "<|im_end|>") -> Any:
    """A byte-level tokenizer with a few merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(
        ["the assistant and the user of the system", "higher\n\nlower\n\n[12] [11]"] * 9, trainer
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token=eos, additional_special_tokens=special
    )
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {name: made(template) for name, template in {"smollm2": SMOLLM2, "forgetful": FORGETFUL}.items()}
ENDS = {name: tokenizer.convert_tokens_to_ids("<|im_end|>") for name, tokenizer in TOKENIZERS.items()}

observations = st.text(st.characters(exclude_characters="<|", exclude_categories=["Cs"]), min_size=1, max_size=12)
actions = st.from_regex(r"[a-z\[][a-z0-9 \n]{0,8}[a-z\]]", fullmatch=True)


def appended(tokenizer: Any, turns: list[tuple[str, list[int]]], last: str) -> list[int]:
    """The ids in front of the last action: observations and the ids of the actions in turn."""
    ids: list[int] = []
    said: list[int] | None = None
    for observation, action in [*turns, (last, [])]:
        ids += first_ids(observation, tokenizer) if said is None else next_ids(observation, said, tokenizer)
        ids += action
        said = action
    return ids


def whole(tokenizer: Any, turns: list[tuple[str, str]], last: str) -> str:
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    messages.append({"role": "user", "content": last})
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_appending_gives_the_ids_of_the_whole_rendering(name: str, data: st.DataObject) -> None:
    tokenizer, end = TOKENIZERS[name], ENDS[name]
    turns = data.draw(st.lists(st.tuples(observations, actions), max_size=3))
    last = data.draw(observations)
    said = [(seen, [*tokenizer.encode(text, add_special_tokens=False), end]) for seen, text in turns]
    expected = tokenizer.encode(whole(tokenizer, turns, last), add_special_tokens=False)
    assert appended(tokenizer, said, last) == expected


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(sampled=st.lists(st.lists(st.integers(3, 329), min_size=1, max_size=6), min_size=1, max_size=3))
def test_sampled_ids_stand_as_they_were_sampled(sampled: list[list[int]]) -> None:
    """However odd the ids: they are not what their text would be encoded as."""
    tokenizer, end = TOKENIZERS["smollm2"], ENDS["smollm2"]
    ids = appended(tokenizer, [("go", [*action, end]) for action in sampled], "go")
    place = 0
    for action in sampled:
        opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        place = next(i for i in range(place, len(ids)) if ids[i : i + len(opening)] == opening) + len(opening)
        assert ids[place : place + len(action) + 1] == [*action, end]
        place += len(action) + 1


def test_two_ids_that_spell_one_token_stay_two() -> None:
    tokenizer, end = TOKENIZERS["smollm2"], ENDS["smollm2"]
    (merged,) = tokenizer.encode("the", add_special_tokens=False)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    ids = appended(tokenizer, [("go", [*letters, end])], "go")
    at = ids.index(letters[0], ids.index(end) + 1)
    assert letters in [ids[i : i + 3] for i in range(at, len(ids))]
    assert tokenizer.decode(ids).count("the") == 1
    assert merged not in ids


def test_thoughts_that_the_template_would_drop_stay() -> None:
    tokenizer, end = TOKENIZERS["forgetful"], ENDS["forgetful"]
    thought = "<think>low</think>[12]"
    ids = appended(tokenizer, [("go", [*tokenizer.encode(thought, add_special_tokens=False), end])], "higher")
    assert thought in tokenizer.decode(ids)
    assert thought not in whole(tokenizer, [("go", thought)], "higher")


def test_no_second_thought_is_opened_in_an_action_that_closes_one() -> None:
    tokenizer = made(OPENING)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = appended(tokenizer, [("go", [*tokenizer.encode("low</think>[12]", add_special_tokens=False), end])], "higher")
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    assert "<|im_start|>assistant\n<think>\nlow</think>[12]<|im_end|>\n<|im_start|>user\nhigher" in text


def test_a_cut_action_is_closed_and_an_ended_one_is_not_closed_twice() -> None:
    tokenizer, end = TOKENIZERS["smollm2"], ENDS["smollm2"]
    cut = next_ids("higher", [40, 41], tokenizer)
    assert cut[0] == end
    assert next_ids("higher", [40, 41, end], tokenizer) == cut[1:]
    other = tokenizer.convert_tokens_to_ids("</s>")
    assert next_ids("higher", [40, 41, other], tokenizer) == cut


def test_plain_text_is_separated_by_the_end_token() -> None:
    tokenizer = made(None, eos="</s>")
    end, text = tokenizer.eos_token_id, tokenizer.encode("higher")
    assert next_ids("higher", [40], tokenizer) == [end, *text]
    assert next_ids("higher", [40, end], tokenizer) == text
    assert next_ids("", [40, end], tokenizer) == []
    assert next_ids("higher", [40], TOKENIZERS["smollm2"], "never") == [ENDS["smollm2"], *text]


def test_what_cannot_carry_an_episode_is_refused() -> None:
    with pytest.raises(ModelError, match="no EOS token"):
        next_ids("higher", [40], made(None, eos=None))
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        next_ids("higher", [40], made(None), "always")
    with pytest.raises(DataError, match="does not show the assistant's earlier turns"):
        next_ids("higher", [40], made("{{ messages[-1]['content'] }}"))
