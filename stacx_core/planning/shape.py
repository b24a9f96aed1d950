"""The numbers of a decoder that memory, traffic and time follow from, read from a Hugging Face config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.errors import ModelError, nearest

FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}
"""`model_type` of what Megatron-core trains here -> what the names of Transformers' classes begin with."""
NEEDED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "quantization_config": None,
}
"""Fields of a config that would make layers compute something else, with the values that they may have."""


@dataclass(frozen=True)
class ModelShape:
    """A pre-norm decoder with rotary positions, grouped-query attention, SwiGLU blocks and RMSNorm.

    Args:
        name: for messages.
        hidden: width `h` of the residual stream.
        heads, kv_heads, head_dim: `a` query heads, `k` heads of keys and values, each of width `d`.
        ffn: width `f` of a dense feed-forward block.
        vocabulary: `V` rows of the embedding.
        tied: the output layer is the embedding.
        qkv_bias: the projections to queries, keys and values have a bias.
        qk_norm: queries and keys are normalised per head.
        sparse: for each layer whether its feed-forward block is a mixture of experts.
        experts, experts_per_token, expert_ffn: `E` experts of width `f_e`, of which each token goes to `K`.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    sparse: tuple[bool, ...]
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.sparse)


_QWEN3: dict[str, Any] = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}

WELL_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "qwen3-4b": {**_QWEN3, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "intermediate_size": 9728, "tie_word_embeddings": True},
    "qwen3-8b": {**_QWEN3, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "intermediate_size": 12288},
    "qwen3-32b": {**_QWEN3, "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
                  "intermediate_size": 25600},
    "qwen3-235b-a22b": {**_QWEN3, "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94,
                        "num_attention_heads": 64, "num_key_value_heads": 4, "intermediate_size": 12288,
                        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536},
}  # fmt: skip
"""Published configs, as far as they matter here, under the names that stand for them."""


def load_shape(model: str) -> ModelShape:
    """The shape of a well-known model, or of the `config.json` in a folder.

    Raises:
        ModelError: It is neither, or the config is not of a supported model.
    """
    if model in WELL_KNOWN:
        return shape_of(model, WELL_KNOWN[model])
    file = Path(model) / "config.json"
    if not file.is_file():
        names = ", ".join(WELL_KNOWN)
        raise ModelError(
            f"--model {model}: there is no {file}, and no built-in shape has that name{nearest(model, WELL_KNOWN)}",
            f"give a Hugging Face folder or one of {names}",
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds no JSON object")
    return shape_of(Path(model).resolve().name, config)


def shape_of(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face config describes.

    Raises:
        ModelError: The model is not supported, or a number is missing or no positive integer.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ModelError(f"{name}: model_type {kind!r} is not supported; supported are {', '.join(FAMILIES)}")
    check_fields(config)
    hidden, heads = _size(name, config, "hidden_size"), _size(name, config, "num_attention_heads")
    default_width = 128 if kind == "qwen3" else hidden // heads
    return ModelShape(
        name=name,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(name, config, "num_key_value_heads", default=heads),
        head_dim=_size(name, config, "head_dim", default=default_width),
        ffn=_size(name, config, "intermediate_size"),
        vocabulary=_size(name, config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        **_experts(name, config),
    )


def check_fields(config: Mapping[str, Any]) -> None:
    """Refuse a config with a field that Megatron's layers would not follow.

    Raises:
        ModelError: Naming the field, its value and the value that is supported.
    """
    for field, known in NEEDED.items():
        value = config.get(field)
        if value is not None and value != known:
            raise ModelError(
                f"--backend megatron supports a config with {field} {known!r}, this model's is {value!r}",
                "train it with --backend torch",
            )


def _experts(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields about experts; Transformers 5 writes their number as `num_local_experts`."""
    layers = _size(name, config, "num_hidden_layers")
    if config["model_type"] != "qwen3_moe":
        return {"sparse": (False,) * layers}
    step = _size(name, config, "decoder_sparse_step", default=1)
    dense = config.get("mlp_only_layers") or ()
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return {
        "sparse": tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
        "experts": _size(name, config, key),
        "experts_per_token": _size(name, config, "num_experts_per_tok"),
        "expert_ffn": _size(name, config, "moe_intermediate_size"),
    }


def _size(name: str, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name}: config key {key!r} is {value!r}; a positive integer is needed")
    return value
