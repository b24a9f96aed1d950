"""Runs on each kind of data, and on the smallest of each."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from stacx_plugin_diffusion.digits import write_digits_checkpoint

NAMES = ("zero", "one", "two", "four")


@pytest.fixture
def pictures(tmp_path):
    """A folder of four 8 x 8 pictures in colour, with captions, weights and labels."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    rows = []
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (60 * number, 255 - 40 * number, 128)).save(folder / f"{number}.png")
        rows.append({"file_name": f"{number}.png", "text": name, "weight": number / 2, "label": number})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def in_colour(tmp_path):
    """A network of three channels."""
    return write_digits_checkpoint(tmp_path / "in-colour", layers=1, dim=32, channels=3)


@pytest.mark.parametrize("flags", [(), ("--rwr-temperature", "0.5"), ("--rwr-temperature", "1e-9")])
def test_pictures_in_colour_with_weights(train, metrics, pictures, in_colour, tmp_path, flags):
    given = ("--prompt-data", pictures, "--hf-checkpoint", in_colour, "--eval-prompt-data", pictures)
    done = train("flow_sft", *given, *flags, "--rollout-batch-size", "4")
    assert done.code == 0, done.err
    assert metrics(tmp_path / "run")[-1]["train/grad_norm"] > 0
    assert Image.open(tmp_path / "run" / "samples" / "000002.png").mode == "RGB"


def test_examples_of_weight_0_teach_nothing(train, metrics, pictures, in_colour, tmp_path):
    rows = [json.loads(line) for line in (pictures / "metadata.jsonl").read_text().splitlines()]
    (pictures / "metadata.jsonl").write_text("".join(json.dumps({**row, "weight": 0}) + "\n" for row in rows))
    assert train("flow_sft", "--prompt-data", pictures, "--hf-checkpoint", in_colour).code == 0
    assert [line["train/skipped_step"] for line in metrics(tmp_path / "run")] == [1, 1]


def test_pairs_of_pictures(stacx, options, metrics, pictures, in_colour, tmp_path):
    rows = [{"prompt": name, "chosen": f"{i}.png", "rejected": f"{3 - i}.png"} for i, name in enumerate(NAMES)]
    (pictures / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--prompt-data", pictures / "pairs.jsonl", "--hf-checkpoint", in_colour, "--n-samples-per-prompt", "1")
    flags = ("--rollout-batch-size", "4", "--global-batch-size", "2")
    done = stacx(*options("flow_dpo", *given, *flags, needs=()))
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert lines[0]["rollout/response_states"] == 4 * 2 * 8
    done = stacx(*options("flow_dpo", *given, output="whole", needs=()))
    assert done.code == 0, done.err
    assert metrics(tmp_path / "whole")[0]["train/loss"] == pytest.approx(0.6931472, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["flow_sft", "flow_grpo"])
def test_latents_with_embeddings_need_no_prompt_encoder(train, metrics, digits_checkpoint, tmp_path, algorithm):
    """The table of prompts is of no use to them, and may be absent."""
    bare = write_digits_checkpoint(tmp_path / "bare", layers=1, dim=32)
    for name in ("prompts.json", "prompts.safetensors"):
        (bare / name).unlink()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "latents": torch.randn(3, 1, 8, 8, generator=generator),
        "prompt_embeds": torch.randn(3, 4, 32, generator=generator),
        "pooled_embeds": torch.randn(3, 32, generator=generator),
    }
    save_file(tensors, tmp_path / "three.safetensors")
    flags = ("--prompt-dropout", "0") if algorithm == "flow_sft" else ("--rm-type", "jpeg_size")
    done = train(algorithm, "--prompt-data", tmp_path / "three.safetensors", "--hf-checkpoint", bare, *flags)
    assert done.code == 0, done.err
    assert metrics(tmp_path / "run")[-1]["train/grad_norm"] > 0


def test_dropping_prompts_of_a_model_without_any_is_refused(train, tmp_path):
    bare = write_digits_checkpoint(tmp_path / "bare", layers=1, dim=32)
    (bare / "prompts.json").unlink()
    tensors = {"prompt_embeds": torch.zeros(2, 1, 32), "pooled_embeds": torch.zeros(2, 32)}
    save_file({"latents": torch.zeros(2, 1, 8, 8), **tensors}, tmp_path / "two.safetensors")
    done = train("flow_sft", "--prompt-data", tmp_path / "two.safetensors", "--hf-checkpoint", bare)
    assert done.code == 2
    assert "has no prompt encoder" in done.err
    assert "--prompt-dropout 0" in done.err


def test_one_prompt_in_a_batch_of_one(train, metrics, recipe, tmp_path):
    (tmp_path / "one.txt").write_text("seven\n")
    data = ("--prompt-data", "digits:test" if recipe == "flow_sft" else tmp_path / "one.txt")
    group = () if recipe == "flow_sft" else ("--n-samples-per-prompt", "1" if recipe == "flow_distill" else "2")
    done = train(recipe, *data, *group, "--rollout-batch-size", "1", "--max-states-per-gpu", "1")
    assert done.code == 0, done.err
    assert metrics(tmp_path / "run")[-1]["train/grad_norm"] > 0


@pytest.mark.parametrize("flags", [("--window-size", "3"), ("--window-low", "1"), ("--window-high", "2")])
def test_windows_at_their_bounds(train, flags):
    done = train("mix_grpo", *flags)
    assert done.code == 0, done.err


@pytest.mark.parametrize(("algorithm", "flags"), [("flow_distill", ("--distill-loss", "dmd")), ("diffusion_nft", ())])
def test_a_single_step_where_no_step_is_noisy(train, algorithm, flags):
    done = train(algorithm, *flags, "--sampling-steps", "1")
    assert done.code == 0, done.err


def test_guidance_is_for_sampling_alone_where_data_are_fitted(train, metrics, tmp_path):
    assert train("flow_sft", output="plain").code == train("flow_sft", "--guidance-scale", "5", output="guided").code
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "guided")


def test_samples_that_are_not_finite_are_counted(train, metrics, tmp_path):
    done = train("flow_grpo", "--eta", "1e9")
    assert done.code == 0, done.err
    for line in metrics(tmp_path / "run"):
        assert line["rollout/without_reward"] == 6
        assert "rollout/diversity" not in line
