"""Runs that train a low-rank adapter."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

RANK = ("--lora-rank", "2")


def tensors(checkpoint, role, *parts):
    return load_file(checkpoint.joinpath(role, *(parts or ("transformer", "diffusion_pytorch_model.safetensors"))))


@pytest.mark.parametrize(
    ("algorithm", "roles", "flags"),
    [
        ("flow_sft", ("policy", "average"), ("--ema-decay", "0.5")),
        ("flow_grpo", ("policy",), ("--flow-kl-coef", "0.1")),
        ("diffusion_nft", ("policy", "old"), ()),
        ("flow_distill", ("policy", "critic"), ("--distill-loss", "dmd")),
    ],
)
def test_the_adapter_alone_is_trained(train, digits_checkpoint, tmp_path, algorithm, roles, flags):
    done = train(algorithm, *RANK, *flags)
    assert done.code == 0, done.err
    checkpoint = tmp_path / "run" / "checkpoints" / "latest"
    before = load_file(digits_checkpoint / "transformer" / "diffusion_pytorch_model.safetensors")
    assert sorted(path.name for path in checkpoint.iterdir() if path.is_dir()) == sorted(roles)
    for role in roles:
        after = tensors(checkpoint, role)
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        adapter = tensors(checkpoint, role, "lora", "adapter_model.safetensors")
        ups = [tensor for name, tensor in adapter.items() if name.endswith("lora_B.weight")]
        assert len(ups) == 4
        assert all(up.any() for up in ups)


def test_the_reference_is_the_base(train, metrics, digits_checkpoint, tmp_path):
    """The policy departs from it, and it is the same whether it is named or taken for granted."""
    flags = (*RANK, "--flow-kl-coef", "0.1", "--num-rollout", "3")
    assert train("flow_grpo", *flags).code == 0
    assert train("flow_grpo", *flags, "--ref-load", digits_checkpoint, output="named").code == 0
    lines = metrics(tmp_path / "run")
    assert lines == metrics(tmp_path / "named")
    assert lines[0]["train/kl"] == 0
    assert lines[2]["train/kl"] > 0


def test_a_checkpoint_of_an_adapter_begins_another_run_and_is_sampled_from(train, stacx, metrics, tmp_path):
    assert train("flow_sft", *RANK, "--lora-alpha", "8", "--lr", "1e-2").code == 0
    policy = tmp_path / "run" / "checkpoints" / "latest" / "policy"
    assert train("flow_grpo", "--hf-checkpoint", policy, output="further").code == 0
    adapters = [
        tensors(folder, "policy", "lora", "adapter_model.safetensors")
        for folder in (policy.parent, tmp_path / "further" / "checkpoints" / "latest")
    ]
    assert any(not torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    done = stacx("sample", tmp_path / "run", "-o", tmp_path / "lora.png", "-n", "4", "--prompt-data", "digits:test")
    assert done.code == 0, done.err
    assert Image.open(tmp_path / "lora.png").size == (4 * 66 + 2, 64 + 2 + 12 + 2)


@pytest.mark.parametrize("flags", [("--lora-targets", "to_q, to_v"), ("--lora-targets", "to_q,to_v")])
def test_chosen_layers_alone_have_an_adapter(train, tmp_path, flags):
    done = train("flow_sft", *RANK, *flags)
    assert done.code == 0, done.err
    names = tensors(tmp_path / "run" / "checkpoints" / "latest", "policy", "lora", "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in names} == {"to_q", "to_v"}


def test_layers_that_the_network_lacks_are_refused(train):
    done = train("flow_sft", *RANK, "--lora-targets", "q_proj")
    assert done.code == 2
    assert "LoRA does not fit the network" in done.err
    assert "to_q" in done.err


@pytest.mark.parametrize("flags", [("--lora-alpha", "8"), ("--lora-targets", "to_q")])
def test_settings_of_an_adapter_without_one_are_refused(train, flags):
    done = train("flow_sft", *flags)
    assert done.code == 2
    assert f"{flags[0]} has no effect without --lora-rank" in done.err


def test_an_adapter_that_is_there_is_not_given_another_rank(train, tmp_path):
    assert train("flow_sft", *RANK).code == 0
    policy = tmp_path / "run" / "checkpoints" / "latest" / "policy"
    done = train("flow_sft", "--lora-rank", "4", "--hf-checkpoint", policy, output="further")
    assert done.code == 2
    assert "--lora-rank 4, but its adapter has rank 2" in done.err
