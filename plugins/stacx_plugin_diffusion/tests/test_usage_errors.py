"""What a user may get wrong, said before a model is loaded or at the latest before the first rollout."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from stacx_plugin_diffusion.digits import write_digits_checkpoint

OFFLINE = ("--no-online-pairs", "--n-samples-per-prompt", "1")
DMD = ("--distill-loss", "dmd")

SETTINGS = [
    ("flow_sft", ("--sigma-min", "0.5", "--sigma-max", "0.2"), "--sigma-min 0.5 is above --sigma-max 0.2"),
    ("flow_sft", ("--n-samples-per-prompt", "2"), "none is sampled here; use 1, and --sigma-draws"),
    ("flow_sft", ("--sigma-density", "mode", "--density-scale", "9"), "--sigma-density mode: the scale"),
    ("flow_sft", ("--ema-decay", "1"), "--ema-decay: 1.0 must be below 1"),
    ("flow_sft", ("--rm-type", "jpeg_size"), "--rm-type has no effect"),
    ("flow_sft", ("--eval-limit", "3"), "--eval-limit has no effect without"),
    ("flow_grpo", ("--n-samples-per-prompt", "1"), "every advantage would be 0"),
    ("flow_grpo", ("--sampling-steps", "1"), "--sampling-steps must be at least 2"),
    ("flow_grpo", ("--grpo-guard", "--dynamics", "cps"), "--grpo-guard is for --dynamics flow_sde or dance_sde"),
    ("flow_grpo", ("--grpo-guard", "--log-prob-reduction", "sum"), "--grpo-guard is for"),
    ("flow_grpo", ("--dynamics", "cps", "--eta", "1.5"), "--eta 1.5 is above 1"),
    ("flow_grpo", ("--cps-log-prob", "unnormalised"), "has no effect without --dynamics cps"),
    ("flow_grpo", ("--dynamics", "sde"), "--dynamics: 'sde' is not one of flow_sde, dance_sde, cps"),
    ("flow_grpo", ("--guidance-scale", "0.5"), "--guidance-scale: 0.5 is below the minimum 1"),
    ("flow_grpo", ("--ref-load", "folder"), "--ref-load has no effect without --flow-kl-coef"),
    ("mix_grpo", ("--window-size", "4"), "--window-size 4 does not fit between --window-low 0 and 3"),
    ("mix_grpo", ("--window-low", "2"), "--window-size 2 does not fit between --window-low 2 and 3"),
    ("mix_grpo", ("--window-high", "4"), "--window-high 4 is behind the last noisy step"),
    ("mix_grpo", ("--window-rollouts-least", "30"), "--window-rollouts-least is above --window-rollouts"),
    ("diffusion_nft", ("--n-samples-per-prompt", "1"), "every advantage would be 0"),
    ("diffusion_nft", ("--nft-loss", "awm", "--nft-ref-coef", "0"), "bound it by --awm-clip or --nft-ref-coef"),
    ("flow_dpo", ("--loss-aggregation", "token_mean"), "a loss of pairs has sample_mean alone"),
    ("flow_dpo", ("--n-samples-per-prompt", "1"), "--online-pairs needs --rm-type, and"),
    ("flow_dpo", ("--no-online-pairs",), "--n-samples-per-prompt must be 1 without --online-pairs"),
    ("flow_dpo", OFFLINE, "pairs are read from NAME.jsonl"),
    ("flow_distill", ("--student-every", "2"), "--student-every has no effect without --distill-loss dmd"),
    ("flow_distill", ("--critic-lr", "1"), "--critic-lr has no effect without --distill-loss dmd"),
    ("flow_distill", (*DMD, "--dmd-noise-min", "0.9", "--dmd-noise-max", "0.1"), "--dmd-noise-min must be below"),
    ("flow_distill", (*DMD, "--num-steps-per-rollout", "2"), "take one step per rollout"),
    ("flow_distill", (*DMD, "--guidance-scale", "2"), "--teacher-guidance-scale is the teacher's"),
    ("flow_distill", (*DMD, "--student-every", "3"), "--student-every 3 leaves none of 2 rollouts"),
    ("flow_distill", ("--distill-loss", "transition_kl", "--sampling-steps", "1"), "--sampling-steps must be at least"),
    ("flow_grpo", ("--rm-type", "jpeg_sise"), "no reward is called 'jpeg_sise' (did you mean 'jpeg_size'?)"),
    ("flow_grpo", ("--rm-type", "nowhere:score"), "'nowhere' cannot be imported"),
    ("flow_grpo", ("--rm-type", "json:dunps"), "no 'dunps' there (did you mean 'dumps'?)"),
    ("flow_grpo", ("--prompt-data", "nosuch.txt"), "'nosuch.txt' does not exist"),
    ("flow_sft", ("--eval-prompt-data", "digits:tset"), "no split 'tset' of the digits (did you mean 'test'?)"),
    ("flow_grpo", ("--guidence-scale", "3"), "(did you mean '--guidance-scale'?)"),
    ("flow_grpo", ("--window-size", "2"), "--window-size is a knob of recipe 'mix_grpo'"),
    ("flow_grpo", ("--rollout-max-response-len", "3"), "--rollout-max-response-len is a knob of recipes of language"),
]


@pytest.mark.parametrize(("algorithm", "flags", "message"), SETTINGS)
def test_settings_are_refused_before_a_model_is_loaded(train, algorithm, flags, message):
    done = train(algorithm, *flags, "--hf-checkpoint", "/no/such/model")
    assert (done.code, message in done.err) == (2, True), done.err


def test_a_knob_of_language_models_is_refused_wherever_it_is_set(train, tmp_path):
    done = train("flow_grpo", STACX_ROLLOUT_MAX_RESPONSE_LEN="3")
    assert done.code == 2
    assert "STACX_ROLLOUT_MAX_RESPONSE_LEN is a knob of recipes of language models" in done.err
    (tmp_path / "run.toml").write_text("[rollout]\nrollout_max_response_len = 3\n")
    done = train("flow_grpo", "--config", tmp_path / "run.toml")
    assert done.code == 2
    assert "rollout.rollout_max_response_len is a knob of recipes of language models" in done.err
    (tmp_path / "run.toml").write_text("[flow]\nguidence_scale = 3\n")
    done = train("flow_grpo", "--config", tmp_path / "run.toml")
    assert done.code == 2
    assert "unknown key 'flow.guidence_scale' (did you mean 'flow.guidance_scale'?)" in done.err


def test_a_step_distilled_model_is_not_trained_on_noised_samples(train, digits_checkpoint, tmp_path):
    fast = write_digits_checkpoint(tmp_path / "fast", layers=1, dim=32)
    (fast / "flow.json").write_text(json.dumps({"step_distilled": True}))
    done = train("diffusion_nft", "--hf-checkpoint", fast)
    assert done.code == 2
    assert "is step-distilled (flow.json)" in done.err
    assert train("flow_grpo", "--hf-checkpoint", fast).code == 0


@pytest.mark.parametrize("flags", [("--height", "7"), ("--width", "9")])
def test_a_size_that_does_not_fit_the_network(train, recipe, flags, tmp_path):
    sampled = () if recipe != "flow_sft" else ("--eval-prompt-data", "digits:test")
    done = train(recipe, *sampled, *flags)
    assert done.code == 2
    assert f"{flags[0][2:]} {flags[1]} is no positive multiple of 2 pixels; the nearest is 8" in done.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_other_models_must_be_alike(train, tmp_path):
    other = write_digits_checkpoint(tmp_path / "other", layers=1, dim=32, channels=3)
    for algorithm, flags in (
        ("flow_grpo", ("--flow-kl-coef", "1", "--ref-load", other)),
        ("flow_dpo", ("--ref-load", other)),
        ("flow_distill", ("--teacher-checkpoint", other)),
    ):
        done = train(algorithm, *flags)
        assert done.code == 2
        assert "reads latents of 3 channels and prompts of width" in done.err


@pytest.fixture
def without_null(tmp_path):
    """A model whose prompts have no null prompt."""
    folder = write_digits_checkpoint(tmp_path / "no-null", layers=1, dim=32)
    names = json.loads((folder / "prompts.json").read_text())
    (folder / "prompts.json").write_text(json.dumps([name or "nothing" for name in names]))
    return folder


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [("flow_grpo", ("--guidance-scale", "2")), ("flow_sft", ()), ("flow_distill", ("--teacher-guidance-scale", "4"))],
)
def test_a_model_without_a_null_prompt(train, without_null, tmp_path, algorithm, flags):
    done = train(algorithm, "--hf-checkpoint", without_null, *flags)
    assert done.code == 2
    assert 'has no null prompt ""' in done.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_null_prompt_is_not_asked_for_where_none_is_needed(train, without_null):
    assert train("flow_grpo", "--hf-checkpoint", without_null).code == 0
    assert train("flow_sft", "--hf-checkpoint", without_null, "--prompt-dropout", "0", output="sft").code == 0


def test_an_unknown_prompt_is_named_before_the_first_rollout(train, tmp_path):
    (tmp_path / "more.txt").write_text("zero\nsevn\n")
    for algorithm, flag in (("flow_grpo", "--prompt-data"), ("flow_sft", "--eval-prompt-data")):
        done = train(algorithm, flag, tmp_path / "more.txt", output=algorithm)
        assert done.code == 2
        assert "has no prompt 'sevn', but near ones: 'seven'" in done.err
        assert not (tmp_path / algorithm / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("latents", "width", "message"),
    [
        ((3, 8, 8), 32, "a latent of shape [3, 8, 8], where the network takes [1, H, W]"),
        ((64,), 32, "a latent of shape [64], where the network takes [1, H, W]"),
        ((1, 7, 8), 32, "height 7 is no positive multiple of 2"),
        ((1, 8, 8), 16, "embeddings that the network cannot read, prompt_embeds [1, 16]"),
    ],
)
def test_latents_that_do_not_fit_the_network(train, tmp_path, latents, width, message):
    tensors = {"prompt_embeds": torch.zeros(2, 1, width), "pooled_embeds": torch.zeros(2, 32)}
    save_file({"latents": torch.zeros(2, *latents), **tensors}, tmp_path / "two.safetensors")
    done = train("flow_sft", "--prompt-data", tmp_path / "two.safetensors")
    assert done.code == 2
    assert message in done.err
    assert "two.safetensors, row 1" in done.err
