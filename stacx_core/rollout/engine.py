"""What every rollout engine offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol


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
    """Generates responses with the policy's current weights."""

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        """One list of responses per request, in order; each response depends on its own seed only."""
