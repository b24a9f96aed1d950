"""Token ids of a conversation in which nothing that was said is ever tokenised again.

The ids of an action are those its author sampled. What stands between two actions (the end of the assistant's turn,
the user's turn, the opening of the next) is rendered by itself and appended, so that the ids the policy is trained on
are the ids it saw, whatever the template makes of earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stacx_core.data.prompts import PromptRow
from stacx_core.data.rendering import (
    ChatTemplateMode,
    chat_text,
    encode,
    end_of_text,
    render_prompt,
    uses_chat_template,
)
from stacx_core.data.sample import Message
from stacx_core.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION, _ANSWER = "question", "5c0d-answer-9f1e"
"""Stand-ins for what was said before; the answer is a text that no template contains."""


def first_ids(
    observation: str | list[Message], tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode = "auto"
) -> list[int]:
    """Ids in front of the first action, or behind a conversation that was rewritten.

    Args:
        observation: the first user turn, or a whole conversation.
        tokenizer: of the policy.
        mode: when to use the chat template; messages always need one.

    Raises:
        DataError: the template refuses, or nothing is left.
        ConfigError: `mode` asks for a template the tokenizer lacks.
    """
    return render_prompt(PromptRow(observation, None, 0, where="the observation"), tokenizer, mode)


def next_ids(
    observation: str, action: Sequence[int], tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode = "auto"
) -> list[int]:
    """Ids to append behind an action: its end, unless it has one, the user's turn, and the assistant's opening.

    Without a chat template that is the EOS and the observation.

    Args:
        observation: the user turn.
        action: ids of the action, for its end.
        tokenizer: of the policy.
        mode: as for `first_ids`.

    Raises:
        DataError: the template refuses, or does not show what the assistant said.
        ModelError: there is neither a template nor an EOS.
    """
    row = PromptRow(observation, None, 0, where="the observation")
    if uses_chat_template(row, tokenizer, mode):
        ids = encode(tokenizer, _behind_answer(row, observation, tokenizer))
    else:
        ids = [end_of_text(tokenizer), *encode(tokenizer, observation)]
    return ids[1:] if action and ids[:1] == [action[-1]] else ids


def _behind_answer(row: PromptRow, observation: str, tokenizer: PreTrainedTokenizerBase) -> str:
    messages: list[Message] = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": observation},
    ]
    _, shown, behind = chat_text(row, messages, tokenizer, open_turn=True).partition(_ANSWER)
    if not shown:
        raise DataError("the chat template does not show the assistant's earlier turns; it cannot carry an episode")
    return behind
