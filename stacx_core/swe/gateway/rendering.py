"""Messages and tools as token ids, and the ids that follow an answer which the engine gave."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.rendering import encode
from stacx_core.data.sample import Message
from stacx_core.errors import ConfigError
from stacx_core.swe.gateway.errors import ApiError, bad_request

_MARK = "7e41-answer-c05d"
"""Stands in for an answer; a text that neither a template nor a conversation contains."""

Tools = Sequence[dict[str, Any]]


class Renderer:
    """Renders by the tokenizer's chat template.

    Args:
        tokenizer: Of the policy.

    Raises:
        ConfigError: It has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if getattr(tokenizer, "chat_template", None) is None:
            raise ConfigError(
                "the gateway takes chat messages, but the tokenizer has no chat template",
                "use a checkpoint that was made for chat, or put a chat_template.jinja into its folder",
            )
        self.tokenizer = tokenizer

    def text(self, messages: Sequence[Message], tools: Tools, *, open_turn: bool = True) -> str:
        """The conversation in the template, by default up to where the assistant begins to speak.

        Raises:
            ApiError: 400, when the template refuses the messages.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=open_turn
            )
        except Exception as error:  # a template is a program of the model's author and may raise anything
            raise bad_request(f"the model's chat template refuses the messages: {error}", "messages") from error
        return str(text)

    def ids(self, text: str) -> list[int]:
        """Token ids of a rendered text.

        Raises:
            ApiError: 400, when the text holds what has no bytes.
        """
        try:
            return encode(self.tokenizer, text)
        except (TypeError, UnicodeEncodeError) as error:
            raise bad_request(f"the messages cannot be tokenised: {error}", "messages") from error

    def behind(self, whole: str, messages: Sequence[Message], answer: int, tools: Tools) -> str | None:
        """What stands behind an answer of the assistant, from the end of its turn to the opening of the next.

        The messages before the answer must be rendered as they are without what follows, and the answer's text must
        be shown: a template that drops earlier thoughts, say, rewrites history.

        Args:
            whole: The rendered messages.
            messages: The conversation.
            answer: Number of the message that is the answer.
            tools: Shown to the model.

        Returns:
            The text, or None where the template rewrites what came before it.
        """
        stand_in: Message = {"role": "assistant", "content": _MARK}
        try:
            history = self._history(messages[:answer], tools)
            marked = self.text([*messages[:answer], stand_in, *messages[answer + 1 :]], tools)
        except ApiError:
            return None
        before, mark, behind = marked.partition(_MARK)
        if not (mark and before.startswith(history) and whole.startswith(history) and whole.endswith(behind)):
            return None
        shown = whole[len(history) : len(whole) - len(behind)]
        return behind if _squeezed(messages[answer]["content"]) in _squeezed(shown) else None

    def _history(self, messages: Sequence[Message], tools: Tools) -> str:
        """The messages with neither an opened turn nor the end that some templates put behind a conversation."""
        return commonprefix([self.text(messages, tools, open_turn=opened) for opened in (True, False)])  # noqa: RUF071


def _squeezed(text: str) -> str:
    """Without white space, of which templates drop and add some around thoughts and answers."""
    return "".join(text.split())
