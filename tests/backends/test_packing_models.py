"""Packed logits equal those of each sequence alone under the model's own attention, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from stacx_core import ModelError
from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.model import (
    context_length,
    forward,
    load_model,
    load_tokenizer,
    pick_device,
    recompute_activations,
)

CPU = torch.device("cpu")
LENGTHS = [5, 1, 9, 2, 4]
SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
SUPPORTED: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mistral": MistralConfig(**SIZES, sliding_window=16),
    "gpt2": GPT2Config(
        vocab_size=20, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2, eos_token_id=0
    ),
}
REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "gemma2": (Gemma2Config(**SIZES, head_dim=8), "soft-capping"),
    "gpt-oss": (GptOssConfig(**SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "sinks"),
}


def save(config: PretrainedConfig, folder: Path) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def sequences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(20, (length,), generator=generator) for length in LENGTHS]


def packed_logits(model: Any, parts: list[Tensor], rows: Tensor | None = None) -> Tensor:
    lengths = [len(part) for part in parts]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return forward(model, torch.cat(parts)[None], positions, PackedLayout(lengths, CPU), rows)[0]


@pytest.mark.parametrize("name", SUPPORTED)
def test_packed_logits_are_those_of_each_sequence_alone(name: str, tmp_path: Path) -> None:
    folder = save(SUPPORTED[name], tmp_path)
    own = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model = load_model(folder, torch.float32, CPU)
    own.eval()
    model.eval()
    parts = sequences()
    with torch.no_grad():
        alone = torch.cat([own(input_ids=part[None]).logits[0] for part in parts])
        packed = packed_logits(model, parts)
        some = packed_logits(model, parts, torch.tensor([4, 20]))
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(some, packed[[4, 20]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_an_attention_that_cannot_be_packed_is_refused(name: str, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason):
        load_model(save(config, tmp_path), torch.float32, CPU)


def test_a_model_with_an_attention_of_its_own_is_refused(tmp_path: Path) -> None:
    """XGLM never asks which attention to use."""
    from transformers import XGLMConfig

    config = XGLMConfig(vocab_size=20, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4)
    with pytest.raises(ModelError, match=r"cannot load|cannot be trained on packed batches|dropped"):
        load_model(save(config, tmp_path), torch.float32, CPU)


def test_a_learnt_position_follows_the_restarted_positions(tmp_path: Path) -> None:
    """OPT looks positions up in a table; the second of two equal sequences sees the same ones as the first."""
    config = OPTConfig(
        vocab_size=20, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=32, init_std=0.2, dropout=0.0,
    )  # fmt: skip
    model = load_model(save(config, tmp_path), torch.float32, CPU)
    part = sequences()[0]
    with torch.no_grad():
        logits = packed_logits(model, [part, part])
    torch.testing.assert_close(logits[:5], logits[5:], atol=1e-5, rtol=1e-5)


def test_in_double_precision_packing_changes_nothing(checkpoint: Path) -> None:
    model = load_model(str(checkpoint), torch.float64, CPU)
    parts = [part % 14 for part in sequences()]
    with torch.no_grad():
        alone = torch.cat([packed_logits(model, [part]) for part in parts])
        torch.testing.assert_close(packed_logits(model, parts), alone, atol=1e-12, rtol=1e-12)


def test_no_token_sees_another_sequence(checkpoint: Path) -> None:
    """The gradient of the second sequence's logits is exactly 0 at the tokens of the first, and causal within."""
    model: Any = load_model(str(checkpoint), torch.float64, CPU)
    embedded: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.get_input_embeddings().register_forward_hook(keep)
    logits = packed_logits(model, [torch.tensor([2, 3, 4]), torch.tensor([5, 6, 7])])
    logits[4].sum().backward()
    assert embedded[0].grad is not None
    assert embedded[0].grad[0].abs().sum(-1).ne(0).tolist() == [False, False, False, True, True, False]


def test_recomputing_layers_changes_no_gradient(checkpoint: Path) -> None:
    gradients = []
    for recompute in (False, True):
        model: Any = load_model(str(checkpoint), torch.float64, CPU)
        model.train()
        if recompute:
            recompute_activations(model)
        packed_logits(model, [part % 14 for part in sequences()]).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-12, rtol=1e-12)


def test_a_sequence_beyond_the_sliding_window_is_refused(tmp_path: Path) -> None:
    model = load_model(save(MistralConfig(**{**SIZES, "sliding_window": 6}), tmp_path), torch.float32, CPU)
    with pytest.raises(ModelError, match=r"longer than the model's sliding window of 6; set --max-sequence-len"):
        packed_logits(model, sequences())


def test_a_folder_without_model_or_tokenizer_is_named(tmp_path: Path) -> None:
    for load in (load_tokenizer, context_length, lambda path: load_model(path, torch.float32, CPU)):
        with pytest.raises(ModelError, match="no folder"):
            load(str(tmp_path / "none"))
        with pytest.raises(ModelError, match=str(tmp_path)):
            load(str(tmp_path))


def test_a_checkpoint_that_lacks_a_weight_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    weights = {k: v for k, v in model.state_dict().items() if k != "model.layers.1.mlp.up_proj.weight"}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ModelError, match=r"lacks 1 weights, first 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_model(str(tmp_path), torch.float32, CPU)


def test_a_checkpoint_with_a_weight_of_another_shape_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    weights = {**model.state_dict(), "model.norm.weight": torch.zeros(3)}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' has shape \(3,\), its config wants \(\d+,\)"):
        load_model(str(tmp_path), torch.float32, CPU)


def test_the_context_is_what_the_config_says(checkpoint: Path) -> None:
    assert context_length(str(checkpoint)) == 32


@pytest.mark.parametrize(("name", "kind"), [("cpu", "cpu"), ("auto", "cuda" if torch.cuda.is_available() else "cpu")])
def test_the_device(name: str, kind: str) -> None:
    assert pick_device(name).type == kind
