"""A chat tokenizer of one token per byte, engines that remember, and a client."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from transformers import PreTrainedTokenizerBase

from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.episodes import EpisodeTask

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }} {{ tool.function.parameters | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- set ns = namespace(query=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' and drop_thoughts and loop.index0 < ns.query %}
{{- message.content.split('</think>')[-1] }}
{%- else %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that shows tools and calls, and with ``drop_thoughts`` no thoughts from before the last user message."""

TASK = EpisodeTask(3, 1, 42, "fix/3")
BASH = {"type": "function", "function": {"name": "bash", "description": "Run", "parameters": {"type": "object"}}}


def chat_tokenizer() -> PreTrainedTokenizerBase:
    """Ids 0 and 1 begin and end a turn, 2 and 3 a tool call; then come the bytes and two pairs of letters."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    marks = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    words = [*marks, *sorted(ByteLevel.alphabet()), "ab", "cd"]
    model = BPE({word: index for index, word in enumerate(words)}, [("a", "b"), ("c", "d")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = Decoder()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks[:2]])
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in marks[2:]])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast


class Remembering(ABC):
    """An engine that keeps what it was asked and what it answered, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[list[int], Generation]]] = []

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        answers = self.answers(requests, params)
        self.batches.append([(list(r.prompt), a) for r, (a,) in zip(requests, answers, strict=True)])
        return answers

    @abstractmethod
    def answers(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        """What it answers."""

    @property
    def said(self) -> list[tuple[list[int], Generation]]:
        """All prompts and answers."""
        return [pair for batch in self.batches for pair in batch]

    def weights_at_rest(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update_weights(self, model: Any, version: int) -> None:
        return

    def close(self) -> None:
        return


class Scripted(Remembering):
    """Answers with the texts of a function of the prompt's text, one token at a time until the limit."""

    def __init__(self, function: Callable[[str], str], tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.function = function
        self.tokenizer = tokenizer

    def answers(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        return [[self._answer(request.prompt, params.max_new_tokens)] for request in requests]

    def _answer(self, prompt: Sequence[int], most: int) -> Generation:
        text = self.function(str(self.tokenizer.decode(list(prompt))))
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), 1][:most]
        log_probs = [-(position % 8 + 1) / 8 for position in range(len(ids))]
        return Generation(ids, log_probs, "stop" if ids[-1] == 1 else "length")


class Policy(Remembering):
    """The embedded engine."""

    def __init__(self, checkpoint: Path) -> None:
        import torch

        from stacx_core.backends.model import load_model
        from stacx_core.rollout.local import LocalEngine

        super().__init__()
        self.engine = LocalEngine(load_model(str(checkpoint), torch.float32, torch.device("cpu")), [1], 64)

    def answers(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        return self.engine.generate(requests, params)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The JSON of the events of a stream, which must end as the protocol says."""
        *events, done, nothing = self.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def send(url: str, key: str, body: Any = None, **headers: str) -> Answer:
    """POST a body, as it is or as JSON, or GET without one."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
    try:
        with urlopen(Request(url, data, given), timeout=60) as response:
            return Answer(response.status, response.read().decode())
    except HTTPError as error:
        return Answer(error.code, error.read().decode())
