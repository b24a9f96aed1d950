"""One pipeline stage of a language model, of which this process has its tensor-parallel share."""

from __future__ import annotations

from typing import Any, Literal

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor, nn

from stacx_core.backends.megatron.attention import PackedAttention
from stacx_core.backends.megatron.config import check_model, is_sparse, transformer_config
from stacx_core.backends.megatron.conversion.weights import weights
from stacx_core.backends.megatron.layout import check
from stacx_core.backends.megatron.packing import Packed
from stacx_core.backends.megatron.rotary import PackedRotary
from stacx_core.planning.layout import Layout


class RMSNorm(nn.RMSNorm):
    """torch's, whose gradient is summed over tensor-parallel processes when each has a part of the tokens."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **unused: Any) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class ScalarHead(nn.Module):
    """A value for each token; it starts at zero.

    The head is whole on every tensor-parallel process. Under sequence parallelism each computes it for its own tokens,
    and the values are gathered; since all of them go on to compute the same loss, each takes its own tokens' gradient.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.gathers = config.sequence_parallel

    def forward(self, hidden: Tensor, **unused: Any) -> tuple[Tensor, None]:
        """``[T_local or T_local / tp, 1, H]`` to ``[T_local, 1, 1]``, and no bias."""
        values = nn.functional.linear(hidden, self.weight)
        if self.gathers:
            values = tensor_parallel.gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)
        return values, None


class Stage(GPTModel):  # type: ignore[misc]
    """The layers of one pipeline stage, with the embedding if it is the first and the head if it is the last."""

    def __init__(self, hf_config: Any, layout: Layout, dtype: torch.dtype, head: Literal["lm", "scalar"]) -> None:
        config = transformer_config(hf_config, layout, dtype)
        super().__init__(
            config,
            _layers(config, hf_config, layout),
            layout.vocabulary(hf_config.vocab_size),
            hf_config.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=hf_config.tie_word_embeddings and head == "lm",
            position_embedding_type="rope",
        )
        self.hf_config, self.head = hf_config, head
        self.rotary_pos_emb = PackedRotary(hf_config)
        width = layout.vocabulary(hf_config.vocab_size) // layout.tensor
        first = parallel_state.get_tensor_model_parallel_rank() * width
        self.columns = range(first, min(first + width, hf_config.vocab_size))
        if head == "scalar" and self.post_process:
            self.output_layer = ScalarHead(config)

    def forward(self, packed: Packed) -> Tensor:
        """The stage's output for a packed input.

        Returns:
            Hidden states ``[T_local, 1, H]`` for the next stage, by ``T_local / tp`` under sequence parallelism; from
            the last stage ``[T_local, len(columns)]`` logits of the token ids ``columns``, which padding is not among,
            or ``[T_local, 1]`` values.
        """
        output: Tensor = super().forward(packed.tokens, packed.positions, None, packed_seq_params=packed)
        if not self.post_process:
            return output
        return output[0] if self.head == "scalar" else output[0, :, : len(self.columns)]


def build(hf_config: Any, layout: Layout, dtype: torch.dtype, head: Literal["lm", "scalar"] = "lm") -> Stage:
    """This process' stage, on its device, with weights of no meaning yet.

    Args:
        hf_config: Of Transformers; see :data:`stacx_core.planning.shape.FAMILIES`.
        layout: The one that :func:`stacx_core.backends.megatron.layout.initialize` was called with.

    Raises:
        ModelError: The model is not supported.
        ConfigError: The layout does not fit it.
    """
    check_model(hf_config)
    check(layout, hf_config)
    stage = Stage(hf_config, layout, dtype, head)
    _mark_shares(stage, layout)
    return stage


def recompute_activations(stage: Stage) -> None:
    """Keep no activations within the stage's layers for the backward pass, but compute them again."""
    config = stage.config
    config.recompute_granularity, config.recompute_method, config.recompute_num_layers = "full", "uniform", 1


def _mark_shares(stage: Stage, layout: Layout) -> None:
    """Tell the optimizer which parameters tensor-parallel processes share.

    The norm of the gradient counts the others once. Megatron marks them as it initialises them, which is left out.
    """
    parameters = dict(stage.named_parameters())
    for weight in weights(stage.hf_config, layout, stage.head):
        cut = weight.sources[0].cut
        if cut is not None and weight.stage == parallel_state.get_pipeline_model_parallel_rank():
            parameter: Any = parameters[weight.parameter]
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, cut, 1


def _layers(config: Any, hf_config: Any, layout: Layout) -> TransformerBlockSubmodules:
    count = layout.stage_layers(hf_config.num_hidden_layers)
    first = parallel_state.get_pipeline_model_parallel_rank() * count
    specs = [_layer(config, is_sparse(hf_config, first + layer)) for layer in range(count)]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=RMSNorm)


def _layer(config: Any, sparse: bool) -> ModuleSpec:
    """Megatron's layer without Transformer Engine, with our norm and our attention."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if sparse else None,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec
