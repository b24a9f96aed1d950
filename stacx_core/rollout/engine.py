"""What every rollout engine offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens.

    Args:
        max_new_tokens: Most tokens of a response.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_p: Nucleus mass, 1 for all.
        top_k: Sample among so many tokens, -1 for all.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class Generation:
    """One response.

    Args:
        ids: Sampled token ids, the stop token included when there is one.
        log_probs: Log-probability of each id under the full softmax at the sampling temperature (at 1 when greedy).
        finish: ``stop`` for a stop token, ``length`` when cut at the limit, ``abort`` when it was stopped half-way;
            ``generate`` returns none of the last kind.
        weight_versions: Label of the weights that sampled each id, where the engine has labels; else empty.
    """

    ids: list[int]
    log_probs: list[float]
    finish: Literal["stop", "length", "abort"]
    weight_versions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and a seed for each response wanted.

    Args:
        prompt: Token ids.
        seeds: One per response.
        begun: What there is of each response, for an :class:`InterruptibleEngine`; empty when none was begun.
    """

    prompt: Sequence[int]
    seeds: Sequence[int]
    begun: Sequence[Generation] = ()


class RolloutEngine(Protocol):
    """Generates responses with the policy's weights."""

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        """One list of responses per request, in order; each response depends on its own seed only."""

    def weights_at_rest(self) -> AbstractContextManager[None]:
        """While in it, the caller promises not to change the model of the last :meth:`update_weights`."""

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Generate with these weights from now on.

        Args:
            model: The policy.
            version: Rollouts completed, which is how samples name the weights that made them.
        """

    def close(self) -> None:
        """Let go of whatever the engine holds; it generates no more."""


class RunningGroups(AbstractContextManager["RunningGroups"], Protocol):
    """Responses under way. Leaving it ends what still runs."""

    @property
    def aborted(self) -> bool:
        """Whether it was told to stop before all responses had come to their end."""

    def __iter__(self) -> Iterator[tuple[int, list[Generation]]]:
        """The number of a request and its responses, when all of them have come to their end, as they do."""

    def abort(self) -> dict[int, list[Generation]]:
        """Stop what still runs; the responses of all requests not handed out, ``finish`` ``abort`` where cut short."""


@runtime_checkable
class InterruptibleEngine(Protocol):
    """A rollout engine that can be stopped half-way, and go on with responses that were."""

    def start(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> RunningGroups:
        """Begin to generate, or go on with the responses of a request that were ``begun``.

        A response that was begun keeps its tokens, log-probs and labels, and counts them in ``params.max_new_tokens``;
        one that had come to its end is returned as it is.
        """
