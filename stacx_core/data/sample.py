"""One rollout sample: what went into the model, what came out, and what was learnt about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stacx_core.errors import BatchError

Message = dict[str, Any]
"""One chat message: `{"role": str, "content": str, ...}`."""

ENVIRONMENT, STUDENT, TEACHER = 0, 1, 2
"""Who wrote a token, in `Sample.executor`."""

ALIGNED_FIELDS = (
    "loss_mask",
    "rollout_log_probs",
    "teacher_log_probs",
    "teacher_topk_ids",
    "teacher_topk_log_probs",
    "executor",
    "turn_ids",
    "token_versions",
)
"""Optional fields of `Sample` with one entry per response token."""

_ENVIRONMENT_ENTRY = {
    "rollout_log_probs": 0.0,
    "teacher_log_probs": 0.0,
    "executor": ENVIRONMENT,
    "turn_ids": -1,
    "token_versions": "",
}
"""What these fields hold on tokens of the environment."""


class SampleStatus(StrEnum):
    """How the generation of a sample ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """One prompt with one response: `tokens` is what the engine saw and is never tokenised again.

    Fields:
        group_index: prompt group; the key of group statistics.
        index: number of the sample, unique within the rollout.
        rollout_id: one execution; samples cut from the same one share it. None: an unused id is given later.
        prompt: text or chat messages, as read from the source.
        tokens: prompt ids then response ids, L of them.
        inputs: what a model of another modality reads in their place: batch key -> this sample's entry.
        response, response_length: decoded response and its length R in tokens, environment tokens included; with
            `inputs`, the number of positions that have a loss.
        label: ground truth as text.
        reward: number, or named numbers of which the run's `reward_key` picks one.
        loss_mask: R entries, 1 where the token is trained; None means all 1.
        weight_versions: weights that generated the response, one entry per generation call.
        rollout_log_probs: R log-probs of the engine at sampling time (nats), 0.0 on environment tokens.
        teacher_log_probs: R log-probs of the teacher (nats); +1.0 marks a token the teacher itself produced.
        teacher_topk_ids, teacher_topk_log_probs: at each of the R tokens K ids, and the teacher's log-probs of them.
        teacher_prompt: prompt ids under which a teacher role scores the response, when they are not the student's.
        executor: R entries, who wrote the token: ENVIRONMENT, STUDENT or TEACHER.
        turn_ids: R entries, the turn of an episode whose action the token belongs to; -1 on environment tokens.
        token_versions: R labels of the weights that sampled the token, where the engine tells; "" on environment
            tokens.
        status: how generation ended.
        remove_sample: keep the sample out of the loss and out of its group's statistics.
        metadata: further fields of the prompt row, and whatever a rollout or a reward wants to hand on.
        pair_id, is_chosen: preference pair, and whether this is its preferred member.
        task_id, source: names for error messages and for statistics per task or per data source.
    """

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[Message] = ""
    tokens: list[int] = field(default_factory=list)
    inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, float] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    teacher_log_probs: list[float] | None = None
    teacher_topk_ids: list[list[int]] | None = None
    teacher_topk_log_probs: list[list[float]] | None = None
    teacher_prompt: list[int] | None = None
    executor: list[int] | None = None
    turn_ids: list[int] | None = None
    token_versions: list[str] | None = None
    status: SampleStatus = SampleStatus.PENDING
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    pair_id: int | None = None
    is_chosen: bool | None = None
    task_id: str = ""
    source: str = ""

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens, P = L - R; 0 where there are no tokens."""
        return len(self.tokens) - self.response_length if self.inputs is None else 0

    @property
    def removed(self) -> bool:
        """True when the sample is neither trained on nor counted in its group's statistics."""
        return self.remove_sample or self.status in (SampleStatus.ABORTED, SampleStatus.FAILED)

    @property
    def mask(self) -> list[int]:
        """The loss mask with its default filled in: R entries of 0 or 1."""
        return [1] * self.response_length if self.loss_mask is None else self.loss_mask

    def describe(self) -> str:
        """How error messages name this sample."""
        return f"sample {self.index}" + (f" (task {self.task_id!r})" if self.task_id else "")

    def append_generated(
        self,
        ids: Sequence[int],
        log_probs: Sequence[float] | None,
        teacher_log_probs: Sequence[float] | None = None,
        *,
        executor: int | None = None,
        turn: int | None = None,
        versions: Sequence[str] | None = None,
    ) -> None:
        """Append generated tokens: mask 1, with their sampling log-probs.

        A response has log-probs, executors, turns and versions for all of its generated tokens or for none; mixing the
        two, or giving another number of log-probs than of ids, raises `BatchError` and leaves the sample as it was.

        Args:
            ids: what was generated.
            log_probs: of the engine, one per id.
            teacher_log_probs: of the teacher, one per id.
            executor: who wrote the ids, STUDENT or TEACHER.
            turn: turn of the episode.
            versions: labels of the weights that sampled the ids, one per id.
        """
        self._append(
            ids,
            1,
            rollout_log_probs=log_probs,
            teacher_log_probs=teacher_log_probs,
            executor=None if executor is None else [executor] * len(ids),
            turn_ids=None if turn is None else [turn] * len(ids),
            token_versions=versions,
        )

    def append_environment(self, ids: Sequence[int]) -> None:
        """Append tokens of a tool or an environment: mask 0, log-probs 0.0, never trained on."""
        filled = {
            name: [nothing] * len(ids)
            for name, nothing in _ENVIRONMENT_ENTRY.items()
            if getattr(self, name) is not None
        }
        self._append(ids, 0, **filled)

    def _append(self, ids: Sequence[int], mask: int, **values: Sequence[Any] | None) -> None:
        grown = {name: self._grown(name, values.get(name), len(ids)) for name in _ENVIRONMENT_ENTRY}
        self.loss_mask = self.mask + [mask] * len(ids)
        for name, entries in grown.items():
            setattr(self, name, entries)
        self.tokens = [*self.tokens, *ids]
        self.response_length += len(ids)

    def _grown(self, name: str, values: Sequence[Any] | None, count: int) -> list[Any] | None:
        current: list[Any] | None = getattr(self, name)
        if values is None:
            if current is not None and count:
                raise BatchError(
                    f"{self.describe()}: {count} generated tokens came without {name}, but earlier "
                    f"tokens have them; give {name} for every generated token or for none"
                )
            return current
        if len(values) != count:
            raise BatchError(f"{self.describe()}: {count} generated tokens came with {len(values)} {name}")
        if current is None:
            if any(self.mask):
                raise BatchError(
                    f"{self.describe()}: {name} came with this generated span, but an earlier one has none; "
                    f"give it for every generated token or for none"
                )
            current = [_ENVIRONMENT_ENTRY[name]] * self.response_length
        return [*current, *values]

    def validate(self) -> None:
        """Check that lengths agree and values are legal; raises `BatchError` naming sample and field."""
        if self.inputs is not None and (self.tokens or self.response_length < 0):
            raise BatchError(f"{self.describe()}: a sample with inputs has no tokens, and response_length from 0 up")
        if self.inputs is None and not 0 <= self.response_length <= max(len(self.tokens) - 1, 0):
            raise BatchError(
                f"{self.describe()}: response_length is {self.response_length} with {len(self.tokens)} "
                "tokens; it must lie between 0 and len(tokens) - 1 (a prompt has at least one token)"
            )
        for name in ALIGNED_FIELDS:
            values = getattr(self, name)
            if values is not None and len(values) != self.response_length:
                raise BatchError(
                    f"{self.describe()}: {name} has {len(values)} entries for {self.response_length} response tokens"
                )
        wrong = next((value for value in self.mask if value not in (0, 1)), None)
        if wrong is not None:
            raise BatchError(f"{self.describe()}: loss_mask holds {wrong!r}; only 0 and 1 are allowed")
