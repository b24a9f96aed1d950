"""Token ids of prompts and of supervised samples, with a word-level tokenizer built here."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from stacx_core.data.prompts import PromptRow
from stacx_core.data.rendering import ChatTemplateMode, render_prompt, sft_sample, sft_samples
from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import ConfigError, DataError, ModelError

WORDS = [
    "[UNK]",
    "<s>",
    "</s>",
    "<|start|>",
    "<|end|>",
    "\n",
    "user",
    "assistant",
    "system",
    *"abcdefgh",
    "<think>",
]
UNK, BOS, EOS, START, END, NEWLINE, USER, ASSISTANT, SYSTEM, A, B, C, D, E, F, G, H, THINK = range(18)

CHAT = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.replace('<think>', '') }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
PLAIN_CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


def tokenizer(template: str | None = None, eos: str | None = "</s>", add_bos: bool = False) -> PreTrainedTokenizerFast:
    """Words and line breaks become one token each; with `add_bos` plain text is wrapped as `<s> ... </s>`."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        unk_token="[UNK]",
        bos_token="<s>",
        eos_token=eos,
        additional_special_tokens=["<|start|>", "<|end|>"],
    )
    made.chat_template = template
    return made


def row(prompt: Any = "a b", label: str | None = None) -> PromptRow:
    return PromptRow(prompt, label, 0, where="data.jsonl, line 1")


def say(*turns: str) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]


def made(sample: Sample | None) -> Sample:
    assert sample is not None
    sample.validate()
    return sample


def split(sample: Sample) -> tuple[list[int], list[int], list[int]]:
    """Prompt ids, response ids, mask."""
    return sample.tokens[: sample.prompt_length], sample.tokens[sample.prompt_length :], sample.mask


def test_plain_text_without_a_template() -> None:
    assert render_prompt(row("a b"), tokenizer()) == [A, B]


def test_plain_text_gets_the_bos_the_tokenizer_adds_but_no_eos() -> None:
    assert render_prompt(row("a b"), tokenizer(add_bos=True)) == [BOS, A, B]


def test_a_bos_in_the_text_is_not_doubled() -> None:
    assert render_prompt(row("<s> a b"), tokenizer(add_bos=True)) == [BOS, A, B]


def test_a_template_that_writes_the_bos_is_not_given_another() -> None:
    assert render_prompt(row("a"), tokenizer(PLAIN_CHAT, add_bos=True)) == [BOS, USER, A]


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_the_chat_template_opens_the_assistant_turn(mode: ChatTemplateMode) -> None:
    expected = [START, USER, NEWLINE, A, END, NEWLINE, START, ASSISTANT, NEWLINE]
    assert render_prompt(row("a"), tokenizer(CHAT), mode) == expected
    assert render_prompt(row(say("a")), tokenizer(CHAT), mode) == expected


def test_the_chat_template_can_be_left_out() -> None:
    assert render_prompt(row("a"), tokenizer(CHAT), "never") == [A]


def test_always_needs_a_template() -> None:
    with pytest.raises(ConfigError, match="apply_chat_template is 'always', but the tokenizer has no chat template"):
        render_prompt(row("a"), tokenizer(), "always")


def test_messages_need_a_template() -> None:
    with pytest.raises(DataError, match=r"data\.jsonl, line 1: .*but the tokenizer has no chat template"):
        render_prompt(row(say("a")), tokenizer())
    with pytest.raises(DataError, match="but apply_chat_template is 'never'"):
        render_prompt(row(say("a")), tokenizer(CHAT), "never")


def test_a_prompt_of_no_token_is_named() -> None:
    with pytest.raises(DataError, match=r"data\.jsonl, line 1: the prompt renders to no token"):
        render_prompt(row(" "), tokenizer())


def test_a_template_that_refuses_is_named() -> None:
    with pytest.raises(DataError, match="line 1: the chat template refuses the messages: no system"):
        render_prompt(row("a"), tokenizer("{{ raise_exception('no system') }}"))


def test_plain_prompt_and_label_end_in_one_eos_that_is_trained() -> None:
    sample = made(sft_sample(row("a", "b c d"), tokenizer()))
    assert split(sample) == ([A], [B, C, D, EOS], [1, 1, 1, 1])
    assert sample.status is SampleStatus.COMPLETED
    log_probs = [-0.1, -0.2, -0.4, -0.8]
    loss = -sum(value * mask for value, mask in zip(log_probs, sample.mask, strict=True)) / sum(sample.mask)
    assert loss == pytest.approx(0.375)


@pytest.mark.parametrize("label", ["b </s>", "b </s> </s>"])
def test_a_label_that_brings_its_eos_gets_no_second_one(label: str) -> None:
    assert split(made(sft_sample(row("a", label), tokenizer())))[1] == [B, EOS]


def test_an_unknown_word_at_the_end_does_not_pass_for_an_eos() -> None:
    assert split(made(sft_sample(row("a", "zzz"), tokenizer())))[1] == [UNK, EOS]
    assert split(made(sft_sample(row("a", "zzz"), tokenizer(PLAIN_CHAT))))[1][-2:] == [UNK, EOS]


def test_the_supervised_prompt_is_the_prompt_of_a_rollout() -> None:
    for template in (None, CHAT):
        sample = made(sft_sample(row("a", "b"), tokenizer(template, add_bos=True)))
        assert split(sample)[0] == render_prompt(row("a"), tokenizer(template, add_bos=True))


def test_with_a_template_the_turn_end_ends_the_response() -> None:
    prompt, response, mask = split(made(sft_sample(row("a", "b c"), tokenizer(CHAT))))
    assert prompt == [START, USER, NEWLINE, A, END, NEWLINE, START, ASSISTANT, NEWLINE]
    assert response == [B, C, END]
    assert mask == [1, 1, 1]


@pytest.mark.parametrize("eos", ["<|end|>", "</s>", None])
def test_the_turn_end_need_not_be_the_eos_and_is_not_doubled(eos: str | None) -> None:
    assert split(made(sft_sample(row("a", "b"), tokenizer(CHAT, eos=eos))))[1] == [B, END]
    assert split(made(sft_sample(row("a", "b <|end|>"), tokenizer(CHAT, eos=eos))))[1] == [B, END]


def test_a_template_without_turn_end_gets_the_eos() -> None:
    prompt, response, mask = split(made(sft_sample(row("a", "b"), tokenizer(PLAIN_CHAT))))
    assert prompt == [BOS, USER, A]
    assert response == [ASSISTANT, B, EOS]
    assert mask == [1, 1, 1]


def test_a_tokenizer_without_eos_cannot_end_a_response() -> None:
    with pytest.raises(ModelError, match="no EOS token"):
        sft_sample(row("a", "b"), tokenizer(eos=None))


def test_later_user_turns_are_masked_and_every_turn_end_is_trained() -> None:
    prompt, response, mask = split(made(sft_sample(row(say("a", "b", "c", "d e")), tokenizer(CHAT))))
    assert prompt == [START, USER, NEWLINE, A, END, NEWLINE, START, ASSISTANT, NEWLINE]
    between = [NEWLINE, START, USER, NEWLINE, C, END, NEWLINE, START, ASSISTANT, NEWLINE]
    assert response == [B, END, *between, D, E, END]
    assert mask == [1, 1, *[0] * len(between), 1, 1, 1]


def test_a_label_is_one_more_assistant_message() -> None:
    with_label = made(sft_sample(row(say("a", "b", "c"), "d"), tokenizer(CHAT)))
    assert split(with_label) == split(made(sft_sample(row(say("a", "b", "c", "d")), tokenizer(CHAT))))


def test_turns_of_the_context_are_read_and_not_learnt() -> None:
    """With three messages of context the first answer is prompt; a template may then rewrite it."""
    for template, message in ((CHAT, "b"), (FORGETFUL, "<think> b")):
        sample = made(sft_sample(row(say("a", message, "c", "d e")), tokenizer(template), context=3))
        prompt, response, mask = split(sample)
        assert prompt[-9:] == [NEWLINE, START, USER, NEWLINE, C, END, NEWLINE, START, ASSISTANT, NEWLINE][-9:]
        assert (response, mask) == ([D, E, END], [1, 1, 1])
    with pytest.raises(DataError, match="no assistant message to learn"):
        sft_sample(row(say("a", "b")), tokenizer(CHAT), context=2)


def test_nothing_behind_the_last_assistant_turn_is_kept() -> None:
    assert made(sft_sample(row(say("a", "b", "c")), tokenizer(CHAT))).tokens[-2:] == [B, END]


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    with pytest.raises(DataError, match="line 1: the template renders the first 2 messages anew once more follow"):
        sft_sample(row(say("a", "<think> b", "c", "d")), tokenizer(FORGETFUL))
    assert split(made(sft_sample(row(say("a", "<think> b")), tokenizer(FORGETFUL))))[1] == [THINK, B, END]


@pytest.mark.parametrize(
    ("prompt", "template", "message"),
    [
        ("a", None, "no label to learn"),
        ("a", CHAT, "no assistant message to learn"),
        ([{"role": "assistant", "content": "a"}], CHAT, "the first message is the assistant's"),
    ],
)
def test_a_row_with_nothing_to_learn_is_named(prompt: Any, template: str | None, message: str) -> None:
    with pytest.raises(DataError, match=f"data.jsonl, line 1: .*{message}"):
        sft_sample(row(prompt), tokenizer(template))


def test_a_cut_response_has_no_end_token() -> None:
    sample = made(sft_sample(row("a b", "c d e"), tokenizer(), max_length=4))
    assert split(sample) == ([A, B], [C, D], [1, 1])
    assert sample.response == "c d"
    assert sample.status is SampleStatus.TRUNCATED


def test_a_row_without_room_for_its_response_is_dropped_and_counted() -> None:
    long, short = row("a b c d e f", "g"), row("a", "b c")
    samples, dropped = sft_samples([long, short], tokenizer(), max_length=4)
    assert [sample.tokens for sample in samples] == [[A, B, C, EOS]]
    assert dropped == 1


def test_dropping_every_row_is_an_error() -> None:
    with pytest.raises(DataError, match="all 2 rows lose their response to the limit of 4 tokens"):
        sft_samples([row("a b c d", "g")] * 2, tokenizer(), max_length=4)
