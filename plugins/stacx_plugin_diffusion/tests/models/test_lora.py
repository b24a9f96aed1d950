"""Adapters: off they are nothing, saved they are peft's, merged they are weights."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from stacx_core import ModelError
from stacx_plugin_diffusion.models import adapter_off, add_lora, has_lora, merged_state


@pytest.fixture
def adapted(network, digits_checkpoints, load):
    """A model with an adapter that does something."""
    model = load(digits_checkpoints[network])
    add_lora(model, rank=2, alpha=4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                parameter.add_(0.1)
    return model


def test_only_the_adapter_is_trained_and_it_begins_as_nothing(network, digits_checkpoints, load, velocities):
    model = load(digits_checkpoints[network])
    before = velocities(model)
    assert not has_lora(model)
    add_lora(model, rank=2, alpha=4)
    assert has_lora(model)
    assert torch.equal(velocities(model), before)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)


def test_off_it_is_the_model_before_bit_for_bit(network, adapted, digits_checkpoints, load, velocities):
    before = velocities(load(digits_checkpoints[network]))
    loss = velocities(adapted).square().mean()
    with adapter_off(adapted), torch.no_grad():
        assert torch.equal(velocities(adapted), before)
    assert not torch.equal(velocities(adapted), before)
    loss.backward()
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert trained
    assert any(parameter.grad.any() for parameter in trained)


def test_it_is_on_again_after_an_error(adapted, velocities):
    before = velocities(adapted)
    with pytest.raises(ZeroDivisionError), adapter_off(adapted):
        1 / 0  # noqa: B018
    assert torch.equal(velocities(adapted), before)


def test_it_comes_back_from_its_checkpoint(adapted, load, velocities, tmp_path):
    adapted.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(velocities(again), velocities(adapted))
    assert again.state_dict().keys() == adapted.state_dict().keys()
    trained = {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}


def test_merged_it_is_a_plain_checkpoint(network, adapted, digits_checkpoints, load, velocities, tmp_path):
    expected = velocities(adapted)
    adapted.save_pretrained(tmp_path)
    adapted.save_pretrained(tmp_path, merged_state(adapted))
    merged = load(tmp_path)
    assert not has_lora(merged)
    assert merged.state_dict().keys() == load(digits_checkpoints[network]).state_dict().keys()
    torch.testing.assert_close(velocities(merged), expected, rtol=1e-4, atol=1e-5)


def test_peft_reads_the_file(adapted, tmp_path, digits_checkpoints, network, load, velocities):
    import peft

    adapted.save_pretrained(tmp_path)
    model = load(digits_checkpoints[network])
    model.network = peft.PeftModel.from_pretrained(model.network, str(tmp_path / "lora"))
    assert torch.equal(velocities(model), velocities(adapted))


def test_the_adapter_of_a_bf16_network_is_fp32(digits_checkpoint, load, velocities, tmp_path):
    model = load(digits_checkpoint, torch.bfloat16)
    before = velocities(model)
    add_lora(model, rank=2, alpha=4)
    dtypes = {".lora_" in name: parameter.dtype for name, parameter in model.named_parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    assert not torch.equal(velocities(model), before)
    with adapter_off(model):
        assert torch.equal(velocities(model), before)
    model.save_pretrained(tmp_path)
    assert torch.equal(velocities(load(tmp_path, torch.bfloat16)), velocities(model))
    model.load_state_dict(merged_state(model), strict=False)


def test_its_random_half_is_the_same_in_every_process(digits_checkpoint, load):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(states))
        model = load(digits_checkpoint)
        add_lora(model, rank=2, alpha=4, seed=seed)
        states.append(model.state_dict()["network.blocks.0.attn.to_q.lora_A.default.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_what_cannot_be_is_refused(digits_checkpoint, load, monkeypatch):
    model = load(digits_checkpoint)
    with pytest.raises(ModelError, match="no LoRA adapter to switch off"), adapter_off(model):
        pass
    with pytest.raises(ModelError, match=r"its linear layers end in .*to_k, to_q, to_v"):
        add_lora(model, rank=2, alpha=4, targets=["to_z"])
    add_lora(model, rank=2, alpha=4)
    with pytest.raises(ModelError, match="has a LoRA adapter already"):
        add_lora(model, rank=2, alpha=4)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"LoRA needs 'peft'(.|\n)*stacx-plugin-diffusion\[diffusers\]"):
        add_lora(load(digits_checkpoint), rank=2, alpha=4)


def test_an_adapter_that_does_not_fit_is_refused(digits_checkpoint, load, tmp_path):
    model = load(digits_checkpoint)
    add_lora(model, rank=2, alpha=4)
    model.save_pretrained(tmp_path / "whole")
    path = tmp_path / "whole" / "lora" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = "base_model.model.blocks.0.attn.to_k.lora_A.weight"
    save_file({**tensors, name: torch.zeros(3, 32)}, path)
    with pytest.raises(ModelError, match=r"to_k.lora_A.default.weight' has shape \[3, 32\], not \[2, 32\]"):
        load(tmp_path / "whole")
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"to_k.lora_A.default.weight' is missing"):
        load(tmp_path / "whole")
    path.unlink()
    with pytest.raises(ModelError, match="no usable LoRA adapter"):
        load(tmp_path / "whole")
    shutil.rmtree(path.parent)
    assert not has_lora(load(tmp_path / "whole"))
