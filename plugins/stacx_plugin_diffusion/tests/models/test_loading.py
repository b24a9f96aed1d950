"""Checkpoints that cannot be used, and what is said of them."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from stacx_core import ModelError

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def broken(digits_checkpoint, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(digits_checkpoint, tmp_path / "copy")


@pytest.fixture
def refusal(load):
    """What loading a folder is refused with."""

    def run(folder):
        with pytest.raises(ModelError) as caught:
            load(folder)
        return str(caught.value)

    return run


def configure(folder, **changes):
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_no_such_folder(broken, refusal):
    assert "(did you mean 'copy'?)" in refusal(broken.with_name("coppy"))


def test_a_folder_without_a_denoiser_names_what_is_there(broken, refusal):
    message = refusal(broken / "transformer")
    assert "no transformer/config.json in" in message
    assert "where there is config.json, diffusion_pytorch_model.safetensors" in message


def test_an_unknown_network_lists_the_known(broken, refusal):
    configure(broken, _class_name="SD3Transformer2D")
    assert (
        "no adapter for 'SD3Transformer2D' (did you mean 'SD3Transformer2DModel'?); "
        "known: FluxTransformer2DModel, SD3Transformer2DModel, SmallDiT"
    ) in refusal(broken)


def test_a_config_without_class(broken, refusal):
    (broken / "transformer" / "config.json").write_text("{}")
    assert "names no class" in refusal(broken)


def test_a_config_that_does_not_fit(broken, refusal):
    configure(broken, dim=30)
    assert "the config does not fit SmallDiT: dim 30 must be" in refusal(broken)


def test_missing_weights(broken, refusal):
    tensors = load_file(broken / WEIGHTS)
    del tensors["output.bias"]
    save_file(tensors, broken / WEIGHTS)
    message = refusal(broken)
    assert str(broken) in message
    assert f"lacks 1 of {len(tensors) + 1} weights, first 'output.bias'" in message


def test_misshapen_weights(broken, refusal):
    save_file({**load_file(broken / WEIGHTS), "output.bias": torch.zeros(5)}, broken / WEIGHTS)
    assert "'output.bias' has shape [5], its config wants [4]" in refusal(broken)


def test_no_file_of_weights(broken, refusal):
    (broken / WEIGHTS).unlink()
    assert "has no weights 'diffusion_pytorch_model.safetensors'" in refusal(broken)


def test_damaged_weights(broken, refusal):
    (broken / WEIGHTS).write_bytes((broken / WEIGHTS).read_bytes()[:-9])
    assert "is damaged" in refusal(broken)


def test_shards_are_read(broken, load, velocities, digits_checkpoint):
    tensors = load_file(broken / WEIGHTS)
    names = sorted(tensors)
    shards = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, broken / "transformer" / file)
    (broken / WEIGHTS).unlink()
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (broken / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(velocities(load(broken)), velocities(load(digits_checkpoint)))


def test_without_diffusers_the_extra_is_named(digits_checkpoints, refusal, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    message = refusal(digits_checkpoints["sd3"])
    assert "a checkpoint of SD3Transformer2DModel needs 'diffusers'" in message
    assert 'pip install "stacx-plugin-diffusion[diffusers]"' in message


def test_the_small_network_needs_no_diffusers(digits_checkpoint, load, velocities, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.setitem(sys.modules, "peft", None)
    assert velocities(load(digits_checkpoint)).isfinite().all()


def test_a_model_may_be_saved_over_its_own_checkpoint(broken, load, velocities):
    model = load(broken)
    before = velocities(model)
    model.save_pretrained(broken)
    assert torch.equal(velocities(model), before)
    assert torch.equal(velocities(load(broken)), before)
