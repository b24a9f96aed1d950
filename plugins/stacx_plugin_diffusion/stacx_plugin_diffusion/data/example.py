"""One row of training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Example:
    """A prompt, with what it should become where that is known.

    Fields:
        prompt: Text; "" where only its embeddings are known.
        latent: ``[*D]`` fp32, or None for prompts alone.
        weight: Of the example in the loss, if the data say so.
        label: Number of its class, if the data say so.
        cond: ``prompt_embeds [L, E]`` and ``pooled_embeds [P]`` where the data bring them.
        where: File and line or row, for messages.
    """

    prompt: str
    latent: Tensor | None = None
    weight: float | None = None
    label: int | None = None
    cond: Mapping[str, Tensor] | None = None
    where: str = ""


@dataclass(frozen=True)
class Pair:
    """Two latents for one prompt, of which the first is preferred.

    Fields:
        prompt: Text.
        chosen: ``[*D]`` fp32.
        rejected: ``[*D]`` fp32.
        where: File and line, for messages.
    """

    prompt: str
    chosen: Tensor
    rejected: Tensor
    where: str = ""
