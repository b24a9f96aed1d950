"""Knobs of the weight updates of SGLang servers."""

from __future__ import annotations

from stacx_core.knobs import Knob

WEIGHT_KNOBS: tuple[Knob, ...] = (
    Knob("update_weight_mode", str, "tensor", "How weights reach SGLang servers: tensor posts them, distributed "
         "broadcasts them (gloo or NCCL), disk writes a checkpoint that the servers read.", "sglang",
         choices=("disk", "tensor", "distributed")),
    Knob("update_weight_buffer_size", int, 512 * 2**20, "Most bytes of weights sent to SGLang servers at once.",
         "sglang", minimum=1),
)  # fmt: skip
