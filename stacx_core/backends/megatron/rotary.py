"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864) of tokens at any positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from stacx_core.errors import ModelError

SUPPORTED = ("default", "linear", "llama3", "yarn")
"""Kinds whose frequencies do not depend on a sequence's length."""


def check_rotary(hf_config: Any) -> None:
    """Refuse rotary embeddings other than those of :func:`frequencies`.

    Raises:
        ModelError: Naming the kind and those supported.
    """
    given = hf_config.rope_parameters
    kind = given.get("rope_type", "default")
    if kind not in SUPPORTED:
        raise ModelError(f"--backend megatron supports rope_type {', '.join(SUPPORTED)}; this model's is {kind!r}")
    partial = given.get("partial_rotary_factor", getattr(hf_config, "partial_rotary_factor", None))
    if partial not in (None, 1.0):
        raise ModelError(f"--backend megatron rotates whole heads; this model's partial_rotary_factor is {partial}")


def frequencies(hf_config: Any) -> tuple[Tensor, float]:
    """``[D / 2]`` fp32 radians per position, and the factor of queries and keys."""
    given = hf_config.rope_parameters
    kind = given.get("rope_type", "default")
    if kind != "default":
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](hf_config, torch.device("cpu"))
        return inverse, float(factor)
    size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    return 1.0 / (given["rope_theta"] ** exponents), 1.0


def rotary_scale(hf_config: Any) -> float:
    """The factor of queries and of keys, which only YaRN (Peng et al. 2023, arXiv:2309.00071) has."""
    return frequencies(hf_config)[1]


class PackedRotary(nn.Module):
    """Stands in for Megatron's rotary embedding, which numbers tokens by their place in the input.

    ``GPTModel`` asks for the length to compute the angles for and passes the answer on: here these are the positions
    of the packed input.
    """

    def __init__(self, hf_config: Any) -> None:
        super().__init__()
        # No buffer, lest a cast of the module to bf16 rounds it.
        self.frequencies = frequencies(hf_config)[0]

    def get_rotary_seq_len(self, context: Any, decoder: Any, decoder_input: Any, config: Any, packed: Any) -> Tensor:
        """The ``[1, T]`` positions of the packed input."""
        positions: Tensor = packed.positions
        return positions

    def forward(self, positions: Tensor, **unused: Any) -> Tensor:
        """Angles ``[T, 1, 1, D]`` fp32 of ``[1, T]`` positions."""
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angles = positions[0, :, None].float() * self.frequencies
        return torch.cat([angles, angles], -1)[:, None, None]
