"""Knobs of the Megatron backend: how a model and a batch are spread over processes."""

from __future__ import annotations

from stacx_core.knobs import Knob

MEGATRON_KNOBS: tuple[Knob, ...] = (
    Knob("tensor_model_parallel_size", int, 1, "Processes that share each layer's weights.", "megatron", minimum=1),
    Knob("pipeline_model_parallel_size", int, 1, "Stages that the layers are divided into.", "megatron", minimum=1),
    Knob("context_parallel_size", int, 1, "Processes that share each sequence's tokens.", "megatron", minimum=1),
    Knob("expert_model_parallel_size", int, 1, "Processes that share the experts of each mixture-of-experts layer.",
         "megatron", minimum=1),
    Knob("sequence_parallel", bool, False, "Share the tokens between tensor-parallel processes where the weights are "
         "whole; needs --tensor-model-parallel-size.", "megatron"),
    Knob("use_distributed_optimizer", bool, False, "Share the optimizer's state between data-parallel processes.",
         "megatron"),
)  # fmt: skip
