"""The roll-ins of both recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stacx_core import (
    Args,
    ConfigError,
    DataError,
    Message,
    PromptRow,
    Rollout,
    RolloutEngine,
    Sample,
    SampledRollout,
    TeacherScoredRollout,
    render_prompt,
)
from stacx_plugin_distill.knobs import over_support

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DistillRollout(TeacherScoredRollout):
    """The student answers, and the teacher tells what the divergence needs.

    Raises:
        ConfigError: ``--distill-missing query`` with a teacher that cannot be asked for chosen tokens.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None) -> None:
        super().__init__(args, tokenizer, context_length)
        if not over_support(args):
            return
        self.top_k = args.distill_topk
        self.asks_for_students = args.distill_missing == "query"
        if self.asks_for_students and not self.teacher.takes_queries:
            raise ConfigError(
                f"--distill-missing query: --teacher {args.teacher} has no method query; use floor or tail"
            )


class PrivilegedRollout(SampledRollout):
    """The policy answers prompts of which the teacher sees more: the text of ``--privileged-key`` in front.

    A row whose longer prompt leaves no room for a response is left out like one whose own does.

    Raises:
        DataError: A row has no such text.
    """

    takes_environment = False

    def has_room(self, row: PromptRow) -> bool:
        """Whether a response has room behind either prompt."""
        return super().has_room(row) and self.fits(self._teacher_prompt(row))

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """The samples of the next prompts, with the prompt that the teacher sees."""
        rolled = super().roll(rollout, engine)
        for sample in rolled.samples:
            sample.teacher_prompt = self._teacher_prompt(_row(sample))
        return rolled

    def _teacher_prompt(self, row: PromptRow) -> list[int]:
        key = self.args.privileged_key
        text = row.label if key == self.args.label_key else row.metadata.get(key)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{row.where}: no text in {key!r} (--privileged-key)")
        told = PromptRow(in_front(text, row.prompt), None, row.index, where=row.where)
        return render_prompt(told, self.tokenizer, self.args.apply_chat_template)


def in_front(text: str, prompt: str | list[Message]) -> str | list[Message]:
    """The prompt with a text and an empty line before it; before the first message when it is a conversation."""
    if isinstance(prompt, str):
        return f"{text}\n\n{prompt}"
    first, *others = prompt
    return [{**first, "content": f"{text}\n\n{first['content']}"}, *others]


def _row(sample: Sample) -> PromptRow:
    return PromptRow(sample.prompt, sample.label, int(sample.task_id), sample.metadata, sample.describe())
