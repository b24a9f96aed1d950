"""Which Hugging Face configs Megatron's layers can compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from stacx_core.errors import ModelError
from tiny_models import LLAMA3, MODELS, SHAPE

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.config import check_model, transformer_config
from stacx_core.planning.layout import Layout


def config(family: str, **given: Any) -> Any:
    return getattr(transformers, f"{family}Config")(**{**SHAPE, **given})


def test_other_architectures_are_refused_with_those_supported() -> None:
    supported = "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM"
    with pytest.raises(ModelError, match=rf"does not support 'gemma2'\n.*{supported}; .*torch"):
        check_model(transformers.Gemma2Config())
    with pytest.raises(ModelError, match="does not support 'LlamaForQuestionAnswering'"):
        check_model(config("Llama", architectures=["LlamaForQuestionAnswering"]))


@pytest.mark.parametrize(
    ("family", "given", "message"),
    [
        ("Llama", {"attention_bias": True}, "attention_bias False, this model's is True"),
        ("Llama", {"mlp_bias": True}, "mlp_bias"),
        ("Llama", {"hidden_act": "gelu"}, "hidden_act 'silu', this model's is 'gelu'"),
        ("Qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("Qwen3", {"attention_dropout": 0.1}, "attention_dropout"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "default, linear"),
        ("Llama", {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(family: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_model(config(family, **given))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_is_taken_over(name: str) -> None:
    family, extra = MODELS[name]
    theirs = config(family, rms_norm_eps=3e-5, **extra)
    check_model(theirs)
    ours = transformer_config(theirs, Layout(), torch.float32)
    assert (ours.layernorm_epsilon, ours.num_query_groups, ours.kv_channels) == (3e-5, 2, extra.get("head_dim", 8))
    assert (ours.add_qkv_bias, ours.qk_layernorm) == (family == "Qwen2", family.startswith("Qwen3"))
    assert ours.num_moe_experts == extra.get("num_experts")
