"""What every rollout engine offers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

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
class GenerationRequest:
    """One prompt and a seed for each response wanted."""

    prompt: Sequence[int]
    seeds: Sequence[int]


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
