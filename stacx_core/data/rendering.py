"""From prompt rows to token ids: chat templates, special tokens, and supervised samples with their masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from stacx_core.data.prompts import PromptRow
from stacx_core.data.sample import Message, Sample, SampleStatus
from stacx_core.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatTemplateMode = Literal["auto", "always", "never"]
"""auto: when the tokenizer has a template; always: a tokenizer without one is an error; never: plain text."""

Span = tuple[list[int], bool]
"""Token ids, and whether they are trained on."""


def render_prompt(row: PromptRow, tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode = "auto") -> list[int]:
    """Token ids a rollout starts from: at most one BOS, no EOS, with a template the opened assistant turn.

    Raises:
        DataError: naming the row, when its messages cannot be rendered or it renders to nothing.
        ConfigError: `mode` asks for a template the tokenizer lacks.
    """
    if uses_chat_template(row, tokenizer, mode):
        text = chat_text(row, _messages(row), tokenizer, open_turn=True)
        ids = encode(tokenizer, text)
    else:
        ids = _plain_prompt(row, tokenizer)
    if not ids:
        raise DataError(f"{_name(row)}: the prompt renders to no token")
    return ids


def sft_sample(
    row: PromptRow,
    tokenizer: PreTrainedTokenizerBase,
    *,
    mode: ChatTemplateMode = "auto",
    max_length: int | None = None,
    context: int = 0,
) -> Sample | None:
    """The supervised sample of a row: mask 1 on assistant tokens and on the token that ends their turn.

    The row is a prompt with a label, or messages of which the assistant's are learnt (a label then is one
    more assistant message). The response begins at the first assistant token and ends in exactly one end
    token: the template's turn end, or the EOS.

    Args:
        row: prompt row.
        tokenizer: of the policy.
        mode: when to use the chat template; messages always need one.
        max_length: tokens kept, from the left; a sample cut by it has status TRUNCATED and no end token.
        context: leading messages that are only read; the assistant's among them belong to the prompt.

    Returns:
        The sample, or None when `max_length` leaves nothing of the response.

    Raises:
        DataError: naming the row: no label, no assistant message, or a template that rewrites earlier turns.
        ModelError: the tokenizer has no EOS token and no template that ends a turn.
        ConfigError: `mode` asks for a template the tokenizer lacks.
    """
    chat = uses_chat_template(row, tokenizer, mode)
    prompt, *response = _chat_spans(row, tokenizer, context) if chat else _plain_spans(row, tokenizer)
    prompt_ids = prompt[0]
    response_ids = [token for ids, _ in response for token in ids]
    mask = [int(trained) for ids, trained in response for _ in ids]
    room = len(response_ids) if max_length is None else max(max_length - len(prompt_ids), 0)
    if room == 0:
        return None
    return Sample(
        index=row.index,
        prompt=row.prompt,
        tokens=prompt_ids + response_ids[:room],
        response=str(tokenizer.decode(response_ids[:room], skip_special_tokens=True)),
        response_length=len(response_ids[:room]),
        label=row.label,
        loss_mask=mask[:room],
        status=SampleStatus.TRUNCATED if room < len(response_ids) else SampleStatus.COMPLETED,
        metadata=row.metadata,
    )


def action_ids(text: str, tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode = "auto") -> list[int]:
    """Token ids of what an assistant says: the text, then exactly one token that ends the turn.

    Raises:
        DataError, ModelError, ConfigError: see `sft_sample`.
    """
    sample = sft_sample(PromptRow("-", text, 0, where="the action of an expert"), tokenizer, mode=mode)
    assert sample is not None
    return sample.tokens[sample.prompt_length :]


def sft_samples(
    rows: Iterable[PromptRow],
    tokenizer: PreTrainedTokenizerBase,
    *,
    mode: ChatTemplateMode = "auto",
    max_length: int | None = None,
) -> tuple[list[Sample], int]:
    """The supervised samples of all rows, and how many rows `max_length` leaves without response.

    Raises:
        DataError: every row was dropped; and what `sft_sample` raises.
    """
    rendered = [sft_sample(row, tokenizer, mode=mode, max_length=max_length) for row in rows]
    samples = [sample for sample in rendered if sample is not None]
    if rendered and not samples:
        raise DataError(f"all {len(rendered)} rows lose their response to the limit of {max_length} tokens; raise it")
    return samples, len(rendered) - len(samples)


def uses_chat_template(row: PromptRow, tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode) -> bool:
    """Whether the row is rendered with the chat template; raises when it should be and cannot."""
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if mode == "always" and not has_template:
        raise ConfigError("apply_chat_template is 'always', but the tokenizer has no chat template")
    chat = has_template and mode != "never"
    if not chat and not isinstance(row.prompt, str):
        reason = "apply_chat_template is 'never'" if has_template else "the tokenizer has no chat template"
        raise DataError(f"{_name(row)}: the prompt is a list of chat messages, but {reason}")
    return chat


def _name(row: PromptRow) -> str:
    return row.where or f"prompt row {row.index}"


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of the text as it stands, without any special token around it."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def _plain_prompt(row: PromptRow, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Plain text with the BOS the tokenizer would add, unless the text brings it; never with an EOS."""
    text = str(row.prompt)
    ids = encode(tokenizer, text)
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and list(tokenizer.encode(text))[:1] == [bos]
    return [bos, *ids] if adds_bos and ids[:1] != [bos] else ids


def _plain_spans(row: PromptRow, tokenizer: PreTrainedTokenizerBase) -> list[Span]:
    if row.label is None:
        raise DataError(f"{_name(row)}: the row has no label to learn; set label_key")
    prompt = _plain_prompt(row, tokenizer)
    if not prompt:
        raise DataError(f"{_name(row)}: the prompt renders to no token")
    return [(prompt, False), (_ended(encode(tokenizer, row.label), {end_of_text(tokenizer)}, tokenizer), True)]


def _ended(ids: list[int], ends: set[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """`ids` with exactly one end token: the one of `ends` they close with, or else the EOS."""
    while len(ids) > 1 and ids[-1] in ends and ids[-2] == ids[-1]:
        ids = ids[:-1]
    if ids and ids[-1] in ends:
        return ids
    return [*ids, end_of_text(tokenizer)]


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the EOS token; raises `ModelError` when the tokenizer has none."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no EOS token, so a response cannot be ended; set its eos_token")
    return int(tokenizer.eos_token_id)


def _turn_end_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Special tokens a chat template may close a turn with: all but those that have another office."""
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    others = {tokenizer.bos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id}
    return (special - others) | ({tokenizer.eos_token_id} - {None})


def _messages(row: PromptRow) -> list[Message]:
    return [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt


def chat_text(row: PromptRow, messages: list[Message], tokenizer: PreTrainedTokenizerBase, *, open_turn: bool) -> str:
    """The messages in the chat template, with `open_turn` up to where the assistant begins to speak."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=open_turn)
    except Exception as error:  # a template is a program of the model's author and may raise anything
        raise DataError(f"{_name(row)}: the chat template refuses the messages: {error}") from error
    return str(text)


def _chat_spans(row: PromptRow, tokenizer: PreTrainedTokenizerBase, context: int) -> list[Span]:
    """The conversation cut at its assistant turns behind the context, each piece encoded by itself, as in a rollout.

    Every rendering of the first messages must be a beginning of the whole: a template that rewrites history
    (drops earlier thoughts, say) would put the mask on tokens the model never saw in that place.
    """
    messages = _messages(row) + ([] if row.label is None else [{"role": "assistant", "content": row.label}])
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant" and number >= context]
    if not turns or turns[0] == 0:
        raise DataError(
            f"{_name(row)}: " + ("the first message is the assistant's" if turns else "no assistant message to learn")
        )
    whole = chat_text(row, messages, tokenizer, open_turn=False)
    spans: list[Span] = []
    done = 0
    for number in turns:
        for until, open_turn in ((number, True), (number + 1, False)):
            part = chat_text(row, messages[:until], tokenizer, open_turn=open_turn)
            if not whole.startswith(part) or len(part) < done:
                raise DataError(
                    f"{_name(row)}: the template renders the first {until} messages anew once more follow",
                    "split the conversation into one row per assistant turn",
                )
            spans.append((encode(tokenizer, whole[done : len(part)]), not open_turn))
            done = len(part)
    return _with_turn_ends(spans, tokenizer)


def _with_turn_ends(spans: list[Span], tokenizer: PreTrainedTokenizerBase) -> list[Span]:
    """Do not train on the layout behind a turn-end token, and leave it out altogether behind the last one."""
    ends = _turn_end_ids(tokenizer)
    ended: list[Span] = []
    for ids, trained in spans:
        cut = _turn_length(ids, ends, tokenizer) if trained else len(ids)
        ended += [(ids[:cut], trained), (ids[cut:], False)]
    last, _ = ended[-2]
    return [*ended[:-2], (_ended(last, ends, tokenizer), True)]


def _turn_length(ids: list[int], ends: set[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens up to and with the turn-end token, when only white space follows it; else all of them."""
    length = len(ids)
    while length and ids[length - 1] not in ends and not str(tokenizer.decode(ids[length - 1 : length])).strip():
        length -= 1
    return length if length and ids[length - 1] in ends else len(ids)
