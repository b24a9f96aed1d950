"""From a Hugging Face config to Megatron's; what would change the result and is not known is refused."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from stacx_core.backends.megatron.rotary import check_rotary, rotary_scale
from stacx_core.errors import ModelError
from stacx_core.planning.layout import Layout
from stacx_core.planning.shape import FAMILIES, check_fields


def check_model(hf_config: Any) -> None:
    """Refuse a model whose layers Megatron's would not compute.

    Raises:
        ModelError: Naming the field of the config, its value and what is supported.
    """
    family = FAMILIES.get(hf_config.model_type)
    named = getattr(hf_config, "architectures", None) or [f"{family}ForCausalLM"]
    if family is None or any(name not in _classes(family) for name in named):
        supported = ", ".join(f"{name}ForCausalLM" for name in FAMILIES.values())
        raise ModelError(
            f"--backend megatron does not support {named[0] if family else hf_config.model_type!r}",
            f"supported are {supported}; train others with --backend torch",
        )
    check_fields(hf_config.to_dict())
    check_rotary(hf_config)


def _classes(family: str) -> tuple[str, ...]:
    return f"{family}ForCausalLM", f"{family}ForSequenceClassification"


def head_dim(hf_config: Any) -> int:
    """Features of an attention head."""
    return int(getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads)


def is_sparse(hf_config: Any, layer: int) -> bool:
    """Whether a layer, counted from 0, is a mixture of experts."""
    return bool(
        getattr(hf_config, "num_experts", 0)
        and layer not in hf_config.mlp_only_layers
        and (layer + 1) % hf_config.decoder_sparse_step == 0
    )


def normalizes_queries(hf_config: Any) -> bool:
    """Whether queries and keys are normalised."""
    return str(hf_config.model_type).startswith("qwen3")


def adds_bias_to_queries(hf_config: Any) -> bool:
    """Whether the projections to queries, keys and values have a bias."""
    return bool(hf_config.model_type == "qwen2")


def transformer_config(hf_config: Any, layout: Layout, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's config of a model that :func:`check_model` lets pass."""
    return TransformerConfig(
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        ffn_hidden_size=hf_config.intermediate_size,
        num_attention_heads=hf_config.num_attention_heads,
        num_query_groups=hf_config.num_key_value_heads,
        kv_channels=head_dim(hf_config),
        softmax_scale=rotary_scale(hf_config) ** 2 * head_dim(hf_config) ** -0.5,
        normalization="RMSNorm",
        layernorm_epsilon=hf_config.rms_norm_eps,
        qk_layernorm=normalizes_queries(hf_config),
        add_bias_linear=False,
        add_qkv_bias=adds_bias_to_queries(hf_config),
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **_parallel(layout),
        **_precision(dtype),
        **(_experts(hf_config) if getattr(hf_config, "num_experts", 0) else {}),
    )


def _parallel(layout: Layout) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": layout.sequence_parallel,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "cuda_graph_scope": [],
        "calculate_per_token_loss": True,
    }


def _precision(dtype: torch.dtype) -> dict[str, Any]:
    """Weights are read from a checkpoint, never initialised; the fused kernels need CUDA extensions."""
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "perform_initialization": False,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "gradient_accumulation_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
    }


def _experts(hf_config: Any) -> dict[str, Any]:
    """The softmax of the best experts' logits is that of all, normalised again over the best."""
    return {
        "num_moe_experts": hf_config.num_experts,
        "moe_ffn_hidden_size": hf_config.moe_intermediate_size,
        "moe_router_topk": hf_config.num_experts_per_tok,
        "moe_router_pre_softmax": not hf_config.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_layer_freq": [int(is_sparse(hf_config, layer)) for layer in range(hf_config.num_hidden_layers)],
    }
