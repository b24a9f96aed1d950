"""Tokens of pairs, what the length limit does to them, and how the roll-in deals them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stacx_core import Args, ConfigError, DataError, Sample
from stacx_plugin_preference.kto import MISMATCHED
from stacx_plugin_preference.pairs import PairRollout
from stacx_plugin_preference.units import with_mismatched

WORDS = ["[UNK]", "</s>", "<|end|>", "user:", "assistant:", *"abcdefgh"]
CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
UNK, EOS, END, USER, ASSISTANT, A, B, C, D, E, F, G, H = range(13)

Build = Callable[..., Args]
Write = Callable[..., str]
Tokenizers = Callable[..., Any]


@pytest.fixture
def roll_in(args_of: Build, tokenizer: Tokenizers, jsonl: Write) -> Callable[..., PairRollout]:
    """The roll-in of some rows; `limit` is the model's context."""

    def build(*rows: Any, template: str | None = None, limit: int | None = None, **values: Any) -> PairRollout:
        return PairRollout(args_of(prompt_data=jsonl(*rows), **values), tokenizer(template), limit)

    return build


def pair(prompt: Any = "a", chosen: Any = "b", rejected: Any = "c d") -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def rolled(made: PairRollout, number: int = 0) -> list[Sample]:
    samples = made.roll(number, None).samples  # type: ignore[arg-type]
    for sample in samples:
        sample.validate()
    return samples


def split(sample: Sample) -> tuple[list[int], list[int], list[int]]:
    """Prompt ids, response ids, mask."""
    return sample.tokens[: sample.prompt_length], sample.tokens[sample.prompt_length :], sample.mask


@pytest.mark.parametrize("suffix", ["", " </s>", " </s> </s>"])
def test_plain_text_ends_in_exactly_one_eos_that_is_trained(roll_in: Any, suffix: str) -> None:
    chosen, rejected = rolled(roll_in(pair("a b", "c" + suffix, "d e" + suffix), rollout_batch_size=1))
    assert split(chosen) == ([A, B], [C, EOS], [1, 1])
    assert split(rejected) == ([A, B], [D, E, EOS], [1, 1, 1])
    assert (chosen.is_chosen, rejected.is_chosen) == (True, False)


@pytest.mark.parametrize("form", ["text", "messages", "conversations"])
def test_a_template_ends_the_turn_and_no_second_end_follows(roll_in: Any, form: str) -> None:
    user, answers = [{"role": "user", "content": "a"}], [[{"role": "assistant", "content": word}] for word in "bc"]
    row = {
        "text": pair("a", "b", "c"),
        "messages": pair(user, *answers),
        "conversations": {"chosen": user + answers[0], "rejected": user + answers[1]},
    }[form]
    chosen, rejected = rolled(roll_in(row, template=CHAT, rollout_batch_size=1))
    assert split(chosen) == ([USER, A, END, ASSISTANT], [B, END], [1, 1])
    assert split(rejected) == ([USER, A, END, ASSISTANT], [C, END], [1, 1])


def test_earlier_turns_of_the_assistant_are_prompt_and_later_ones_of_the_user_are_masked(roll_in: Any) -> None:
    turns = [{"role": ("user", "assistant")[n % 2], "content": word} for n, word in enumerate("abcdef")]
    other = [{"role": "assistant", "content": "h"}]
    chosen, _ = rolled(roll_in(pair(turns[:3], turns[3:], other), template=CHAT, rollout_batch_size=1))
    prompt, response, mask = split(chosen)
    assert prompt == [USER, A, END, ASSISTANT, B, END, USER, C, END, ASSISTANT]
    assert response == [D, END, USER, E, END, ASSISTANT, F, END]
    assert mask == [1, 1, 0, 0, 0, 0, 1, 1]


def test_whole_texts_are_given_no_template(roll_in: Any) -> None:
    row = {"chosen": "a b c", "rejected": "a b d"}
    chosen, rejected = rolled(roll_in(row, template=CHAT, rollout_batch_size=1))
    assert split(chosen)[:2] == ([A, B], [C, EOS])
    assert split(rejected)[:2] == ([A, B], [D, EOS])
    with pytest.raises(ConfigError, match="line 1: --apply-chat-template always cannot fit a text without prompt"):
        roll_in(row, template=CHAT, apply_chat_template="always")


def test_a_pair_shares_its_rollout_and_every_sample_has_a_number(roll_in: Any) -> None:
    """Three pairs from two rows: the one that comes twice is two pairs."""
    samples = rolled(roll_in(pair("a"), pair("e"), rollout_batch_size=3))
    assert [sample.pair_id for sample in samples] == [0, 0, 1, 1, 2, 2]
    assert [sample.rollout_id for sample in samples] == [0, 0, 1, 1, 2, 2]
    assert [sample.index for sample in samples] == list(range(6))
    assert [sample.tokens[0] for sample in samples] == [A, A, E, E, A, A]
    assert samples[2].describe().endswith("rows.jsonl, line 2')")


def test_a_pair_whose_responses_do_not_fit_is_left_out_and_counted(roll_in: Any, caplog: Any) -> None:
    long = pair("a b c d e f g h a b c d", "a b", "a b c d")
    made = roll_in(long, pair(), limit=8)
    assert made.num_prompts == 1
    assert made.roll(0, None).metrics == {"dropped_rows": 1.0, "identical_pairs": 0.0}
    assert "1 of 2 rows are left out, whose responses the limit of 8 tokens cuts away" in caplog.text
    with pytest.raises(DataError, match="all 2 rows lose a response to the limit of 8 tokens"):
        roll_in(long, long, limit=8)


def test_a_limit_that_cuts_away_the_difference_leaves_no_pair(roll_in: Any) -> None:
    """`a | b c` twice: a loss of ln 2 without a gradient."""
    with pytest.raises(DataError, match="all 1 rows"):
        roll_in(pair("a", "b c d", "b c e"), limit=3)
    chosen, rejected = rolled(roll_in(pair("a", "b c d", "e"), max_sequence_len=3, rollout_batch_size=1))
    assert split(chosen)[1] == [B, C]
    assert split(rejected)[1] == [E, EOS]
    with pytest.raises(DataError, match="all 1 rows"):
        roll_in(pair("a", "b c d", "e"), limit=3, mask_truncated=True)


def test_identical_responses_are_kept_and_counted(roll_in: Any, caplog: Any) -> None:
    made = roll_in(pair("a", "b", "b"), pair())
    assert len(rolled(made)) == 4
    assert made.roll(0, None).metrics["identical_pairs"] == 1.0
    assert "1 pairs have the same response twice" in caplog.text


def test_the_order_depends_on_the_seed_and_goes_on_after_a_resume(roll_in: Any) -> None:
    rows = [pair(word) for word in "abcdefgh"]
    first, again, other = (roll_in(*rows, rollout_shuffle=True, seed=seed) for seed in (1, 1, 2))
    drawn = [[sample.tokens[0] for sample in rolled(made)] for made in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    resumed = roll_in(*rows, rollout_shuffle=True, seed=1)
    resumed.restore(first.state())
    assert [s.tokens for s in rolled(resumed)] == [s.tokens for s in rolled(first)]


def test_held_out_pairs(roll_in: Any, jsonl: Write) -> None:
    assert roll_in(pair()).held_out() == []
    held = jsonl(pair("e"), pair("f"), pair("g"), name="held.jsonl")
    samples = roll_in(pair(), eval_pair_data=held, eval_limit=2).held_out()
    assert [(sample.tokens[0], sample.pair_id) for sample in samples] == [(E, 0), (E, 0), (F, 1), (F, 1)]
    with pytest.raises(DataError, match=r"held\.jsonl, line 1: no field 'rejected'"):
        roll_in(pair(), eval_pair_data=jsonl({"prompt": "a", "chosen": "b"}, name="held.jsonl"))


def test_kto_deals_out_single_responses_with_mismatched_twins(roll_in: Any) -> None:
    """Rows 1 and 2 share a prompt, so the twin of both has the response of row 3; its twin has that of row 1."""
    rows = [
        {"prompt": "a", "completion": "b", "label": True},
        {"prompt": "a", "completion": "c", "label": False},
        {"prompt": "d", "completion": "e f", "label": True},
    ]
    samples = rolled(roll_in(*rows, dpo_loss_type="kto", rollout_batch_size=3))
    assert [split(sample)[:2] for sample in samples] == [
        ([A], [B, EOS]),
        ([A], [E, F, EOS]),
        ([A], [C, EOS]),
        ([A], [E, F, EOS]),
        ([D], [E, F, EOS]),
        ([D], [B, EOS]),
    ]
    assert [MISMATCHED in sample.metadata for sample in samples] == [False, True] * 3
    assert [sample.is_chosen for sample in samples[::2]] == [True, False, True]
    assert {sample.pair_id for sample in samples} == {None}
    assert [sample.rollout_id for sample in samples] == [0, 0, 1, 1, 2, 2]


def test_a_mismatched_response_keeps_to_the_limit(roll_in: Any) -> None:
    rows = [
        {"prompt": "a b c", "completion": "d", "label": True},
        {"prompt": "a", "completion": "b c d", "label": True},
    ]
    samples = rolled(roll_in(*rows, dpo_loss_type="kto", limit=5))
    assert samples[1].tokens == [A, B, C, B, C]
    assert samples[1].mask == [1, 1]


def test_kto_needs_two_prompts(roll_in: Any) -> None:
    with pytest.raises(DataError, match="all rows have the same prompt"):
        roll_in(pair("a"), pair("a", "e", "f"), dpo_loss_type="kto")


def test_the_twin_answers_the_next_other_prompt_of_the_ring() -> None:
    """Prompts a a b a a: the last two go round to b again."""
    samples = [
        Sample(tokens=[prompt, response], response_length=1, prompt="")
        for prompt, response in zip([A, A, B, A, A], [C, D, E, F, G], strict=True)
    ]
    twins = [unit[1].tokens for unit in with_mismatched(samples, "made", None)]
    assert twins == [[A, E], [A, E], [B, F], [A, E], [A, E]]
