"""Whole pipelines of diffusers, with text encoders and an autoencoder of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stacx_core import ModelError

CHARACTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """Vocabulary and merges of a CLIP tokenizer that knows single letters."""
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = [*CHARACTERS, *(f"{letter}</w>" for letter in CHARACTERS), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


@pytest.fixture(scope="module")
def text(tokenizer_folder):
    """A tokenizer, and the config of a text encoder for it."""
    from transformers import CLIPTextConfig, CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(tokenizer_folder, model_max_length=77)
    ends = {"bos_token_id": 52, "eos_token_id": 53, "pad_token_id": 53}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return tokenizer, CLIPTextConfig(vocab_size=len(tokenizer), projection_dim=16, **sizes, **ends)


def autoencoder():
    import diffusers

    return diffusers.AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=2,
        sample_size=8,
        scaling_factor=1.5,
        shift_factor=0.1,
    )


@pytest.fixture(scope="module")
def pipeline(text):
    """A Stable Diffusion 3 of a few thousand weights, without its largest text encoder."""
    import diffusers
    from transformers import CLIPTextModelWithProjection

    torch.manual_seed(0)
    tokenizer, config = text
    return diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=4,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=32,
            caption_projection_dim=16,
            pooled_projection_dim=32,
            pos_embed_max_size=4,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder(),
        text_encoder=CLIPTextModelWithProjection(config),
        tokenizer=tokenizer,
        text_encoder_2=CLIPTextModelWithProjection(config),
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )


@pytest.fixture(scope="module")
def flux(text):
    """A Flux of a few thousand weights, with both text encoders."""
    import diffusers
    from transformers import CLIPTextModel, T5Config, T5EncoderModel, T5TokenizerFast

    torch.manual_seed(0)
    tokenizer, config = text
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces = T5TokenizerFast(vocab=special + [(letter, -3.0) for letter in CHARACTERS], extra_ids=0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return diffusers.FluxPipeline(
        transformer=diffusers.FluxTransformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=1,
            joint_attention_dim=32,
            pooled_projection_dim=16,
            axes_dims_rope=(4, 6, 6),
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder(),
        text_encoder=CLIPTextModel(config),
        tokenizer=tokenizer,
        text_encoder_2=T5EncoderModel(T5Config(vocab_size=len(pieces), **sizes)).eval(),
        tokenizer_2=pieces,
    )


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    pipeline.save_pretrained(folder)
    return folder


def test_prompts_are_encoded_by_the_pipelines_own_encoders(pipeline, folder, load):
    embeds, _, pooled, _ = pipeline.encode_prompt(["cat", ""], None, None, do_classifier_free_guidance=False)
    found = load(folder).encode(["cat", ""])
    assert torch.equal(torch.stack([row["prompt_embeds"] for row in found]), embeds)
    assert torch.equal(torch.stack([row["pooled_embeds"] for row in found]), pooled)
    assert load(folder).encode([]) == []


def test_flux_encodes_prompts_and_runs_on_them(flux, load, tmp_path):
    flux.save_pretrained(tmp_path)
    model = load(tmp_path)
    with torch.no_grad():
        embeds, pooled, _ = flux.encode_prompt(["cat", ""], None)
    rows = model.encode(["cat", ""])
    cond = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    assert torch.equal(cond["prompt_embeds"], embeds)
    assert torch.equal(cond["pooled_embeds"], pooled)
    shape = model.latent_shape(16, 8)
    assert shape == (4, 8, 4)
    assert model.predict_velocity(torch.randn(2, *shape), torch.tensor([0.5, 1.0]), cond).shape == (2, *shape)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved").encode(["cat"])[0]["prompt_embeds"], embeds[0])


def test_latents_are_scaled_and_shifted_as_the_autoencoder_says(pipeline, folder, load):
    model = load(folder)
    x0 = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = (pipeline.vae.decode(x0 / 1.5 + 0.1).sample / 2 + 0.5).clamp(0, 1)
        latent = pipeline.vae.encode(expected * 2 - 1).latent_dist.mean
    torch.testing.assert_close(model.decode(x0), expected)
    torch.testing.assert_close(model.encode_media(expected), (latent - 0.1) * 1.5)
    assert model.latent_shape(8, 8) == (4, 4, 4)
    assert model.media_channels == 3


def test_only_the_denoiser_is_part_of_the_module(folder, load):
    model = load(folder)
    model.encode(["cat"])
    model.decode(torch.zeros(1, 4, 4, 4))
    assert all(name.startswith("network.") for name in model.state_dict())


def test_diffusers_reads_what_is_saved(pipeline, folder, load, tmp_path):
    import diffusers

    model = load(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path / "saved")
    again = diffusers.StableDiffusion3Pipeline.from_pretrained(
        tmp_path / "saved", **dict.fromkeys(["text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor"])
    )
    for name, tensor in again.transformer.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[f"network.{name}"])
    assert torch.equal(
        load(tmp_path / "saved").encode(["cat"])[0]["pooled_embeds"], model.encode(["cat"])[0]["pooled_embeds"]
    )
    encoder = Path("text_encoder/model.safetensors")
    assert (tmp_path / "saved" / encoder).samefile(folder / encoder)


def test_a_pipeline_of_no_known_kind_is_refused_when_it_should_encode(folder, load, tmp_path):
    model = load(folder)
    model.save_pretrained(tmp_path / "saved")
    index = tmp_path / "saved" / "model_index.json"
    other = json.loads(index.read_text()) | {"_class_name": "OtherPipeline"}
    index.unlink()
    index.write_text(json.dumps(other))
    with pytest.raises(ModelError, match="no way to encode prompts for 'OtherPipeline'"):
        load(tmp_path / "saved").encode(["cat"])
    index.write_text("[")
    with pytest.raises(ModelError, match="is no index of a pipeline"):
        load(tmp_path / "saved")
