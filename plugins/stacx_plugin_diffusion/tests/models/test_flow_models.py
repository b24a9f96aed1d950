"""Every network behind the one interface."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_core import ConfigError, ModelError
from stacx_plugin_diffusion.digits import main, write_digits_checkpoint
from stacx_plugin_diffusion.models.patches import patchify, unpatchify
from stacx_plugin_diffusion.models.small_dit import SmallDiT


def test_what_is_saved_is_what_is_loaded(network, digits_checkpoints, load, velocities, tmp_path):
    model = load(digits_checkpoints[network])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(velocities(load(tmp_path / "saved")), velocities(model))


def test_a_given_state_is_saved_in_place_of_the_models_own(network, digits_checkpoints, load, velocities, tmp_path):
    model = load(digits_checkpoints[network])
    state = {name: tensor * 1.5 for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "saved", state)
    model.load_state_dict(state)
    assert torch.equal(velocities(load(tmp_path / "saved")), velocities(model))


def test_bf16_networks_answer_in_fp32(network, digits_checkpoints, load, velocities):
    exact = velocities(load(digits_checkpoints[network]))
    rounded = velocities(load(digits_checkpoints[network], torch.bfloat16))
    assert exact.dtype == rounded.dtype == torch.float32
    assert exact.shape == (2, 1, 8, 8)
    assert 0 < (exact - rounded).abs().max() < 0.1 * exact.abs().max()


def test_noise_level_and_prompt_count(network, digits_checkpoints, load, velocities):
    model = load(digits_checkpoints[network])
    first = velocities(model)
    assert not torch.equal(first, velocities(model, sigma=(0.25, 0.81)))
    assert not torch.equal(first, velocities(model, prompts=("three", "")))


def test_a_sample_does_not_depend_on_its_batch(network, digits_checkpoints, load):
    model = load(digits_checkpoints[network])
    x, sigma = torch.randn(4, 1, 8, 8), torch.rand(4)
    rows = model.encode(["one", "two", "three", ""])
    cond = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    whole = model.predict_velocity(x, sigma, cond)
    alone = model.predict_velocity(x[2:3], sigma[2:3], {name: value[2:3] for name, value in cond.items()})
    torch.testing.assert_close(whole[2:3], alone, rtol=1e-5, atol=1e-6)


def test_the_sign_of_the_velocity_is_a_setting(network, digits_checkpoints, load, velocities, tmp_path):
    model = load(digits_checkpoints[network])
    before = velocities(model)
    model.settings = replace(model.settings, velocity_sign=-1, step_distilled=True)
    model.save_pretrained(tmp_path)
    assert torch.equal(velocities(load(tmp_path)), -before)
    assert load(tmp_path).settings.step_distilled


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"velocity_sgn": -1}', "unknown setting 'velocity_sgn' (did you mean 'velocity_sign'?)"),
        ('{"velocity_sign": 2}', "velocity_sign is 1 or -1, not 2"),
        ("[1", "no JSON object"),
    ],
)
def test_settings_are_checked(settings, message, digits_checkpoint, load, tmp_path):
    folder = shutil.copytree(digits_checkpoint, tmp_path / "copy")
    (folder / "flow.json").write_text(settings)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert message in str(caught.value)


def test_sd3_is_told_a_thousand_times_sigma(digits_checkpoints, load, velocities):
    model = load(digits_checkpoints["sd3"])
    rows = model.encode(["three", "eight"])
    expected = model.network(
        hidden_states=torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3)),
        timestep=torch.tensor([250.0, 800.0]),
        encoder_hidden_states=torch.stack([row["prompt_embeds"] for row in rows]),
        pooled_projections=torch.stack([row["pooled_embeds"] for row in rows]),
    ).sample
    assert torch.equal(velocities(model), expected)


def test_flux_is_packed_as_its_pipeline_does(digits_checkpoints, load, velocities):
    from diffusers import FluxPipeline

    model = load(digits_checkpoints["flux"])
    rows = model.encode(["three", "eight"])
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    packed = model.network(
        hidden_states=FluxPipeline._pack_latents(x, 2, 1, 8, 8),
        timestep=torch.tensor([0.25, 0.8]),
        encoder_hidden_states=torch.stack([row["prompt_embeds"] for row in rows]),
        pooled_projections=torch.stack([row["pooled_embeds"] for row in rows]),
        txt_ids=torch.zeros(1, 3),
        img_ids=FluxPipeline._prepare_latent_image_ids(2, 4, 4, "cpu", torch.float32),
    ).sample
    assert torch.equal(velocities(model), FluxPipeline._unpack_latents(packed, 64, 64, 8)[:, :, :8, :8])


def test_flux_is_told_its_guidance(tmp_path, load, velocities):
    folder = write_digits_checkpoint(
        tmp_path, "flux", num_layers=1, num_single_layers=1, num_attention_heads=2, guidance_embeds=True
    )
    model = load(folder)
    before = velocities(model)
    model.settings = replace(model.settings, guidance_embed=1.0)
    assert not torch.equal(velocities(model), before)


def test_pixels_are_latents_from_minus_1_to_1(digits_checkpoint, load):
    model = load(digits_checkpoint)
    media = torch.tensor([0.0, 0.25, 1.0]).reshape(1, 1, 1, 3)
    assert model.encode_media(media).flatten().tolist() == [-1.0, -0.5, 1.0]
    assert torch.equal(model.decode(model.encode_media(media)), media)
    assert model.decode(torch.tensor([-3.0, 3.0]).reshape(1, 1, 1, 2)).flatten().tolist() == [0.0, 1.0]
    assert model.media_channels == 1


def test_the_shape_of_a_latent(network, digits_checkpoints, load):
    model = load(digits_checkpoints[network])
    assert model.latent_shape(8, 4) == (1, 8, 4)
    with pytest.raises(ConfigError, match="width 7 is no positive multiple of 2 pixels; the nearest is 8"):
        model.latent_shape(8, 7)
    with pytest.raises(ConfigError, match="height 0"):
        model.latent_shape(0, 8)


def test_sd3_has_positions_up_to_a_size(digits_checkpoints, load):
    model = load(digits_checkpoints["sd3"])
    assert model.latent_shape(16, 16) == (1, 16, 16)
    with pytest.raises(ConfigError, match="width 18 is more than the 16 pixels that this network has positions for"):
        model.latent_shape(16, 18)


def test_gradients_reach_the_network_and_recomputing_changes_none(network, digits_checkpoints, load, velocities):
    model = load(digits_checkpoints[network])
    gradients = []
    for _ in range(2):
        model.zero_grad()
        velocities(model).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        model.gradient_checkpointing_enable()
        model.train()
    assert gradients[0]
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))


def test_the_same_seed_gives_the_same_model(network, digits_checkpoints, tmp_path, load, velocities):
    random = torch.get_rng_state()
    sizes = {"small": {}, "sd3": {"num_layers": 1}, "flux": {"num_single_layers": 1}}[network]
    first, second, third = (
        velocities(load(write_digits_checkpoint(tmp_path / str(index), network, seed, **sizes)))
        for index, seed in enumerate((5, 5, 6))
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(torch.get_rng_state(), random)


def test_patches_list_channel_row_and_column():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert patchify(x, 2)[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


@given(*(st.integers(1, 4) for _ in range(5)))
def test_patches_are_put_together_as_they_were_cut(batch, channels, size, rows, columns):
    x = torch.randn(batch, channels, rows * size, columns * size)
    tokens = patchify(x, size)
    assert tokens.shape == (batch, rows * columns, channels * size**2)
    assert torch.equal(unpatchify(tokens, size, rows, columns), x)


def test_an_untrained_dit_gives_zero_and_its_blocks_are_the_identity():
    network = SmallDiT(layers=1, dim=32)
    tokens = torch.randn(2, 5, 32)
    assert torch.equal(network.blocks[0](tokens, torch.randn(2, 32)), tokens)
    velocity = network(torch.randn(2, 1, 8, 8), torch.tensor([0.0, 1000.0]), torch.randn(2, 1, 32), torch.randn(2, 32))
    assert torch.equal(velocity, torch.zeros(2, 1, 8, 8))


def test_the_command_writes_a_checkpoint(tmp_path, monkeypatch, capsys, load, velocities):
    monkeypatch.setattr("sys.argv", ["digits", str(tmp_path / "start"), "--seed", "4"])
    main()
    assert capsys.readouterr().out == f"{tmp_path / 'start'}\n"
    expected = load(write_digits_checkpoint(tmp_path / "same", seed=4))
    assert torch.equal(velocities(load(tmp_path / "start")), velocities(expected))


def test_nothing_optional_is_imported_before_it_is_needed(child):
    done = child(
        "-c",
        "import sys, stacx_plugin_diffusion.data, stacx_plugin_diffusion.models, stacx_plugin_diffusion.rewards\n"
        "print([name for name in ('diffusers', 'peft', 'sklearn', 'transformers') if name in sys.modules])",
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.parametrize(
    ("network", "sizes", "message"),
    [
        ("smal", {}, "no network 'smal' (did you mean 'small'?)"),
        ("small", {"dim": 30}, "dim 30 must be a multiple of 4 and of heads 4"),
        ("small", {"depth": 2}, "unexpected keyword argument 'depth'"),
    ],
)
def test_impossible_sizes_are_refused(network, sizes, message, tmp_path):
    with pytest.raises(ConfigError) as caught:
        write_digits_checkpoint(tmp_path, network, **sizes)
    assert message in str(caught.value)


def test_a_config_keeps_what_it_said(digits_checkpoints, load, tmp_path):
    load(digits_checkpoints["sd3"]).save_pretrained(tmp_path)
    before = json.loads((digits_checkpoints["sd3"] / "transformer" / "config.json").read_text())
    assert json.loads((tmp_path / "transformer" / "config.json").read_text()) == before
