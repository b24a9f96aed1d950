"""`stacx train` resolves, prints, stores and reloads its configuration."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

GIVEN = ["train", "--algorithm", "grpo", "--lr", "1e-5", "--no-rollout-shuffle", "--use-kl-loss", "--seed=7"]


def test_a_printed_configuration_prints_itself_again(stacx: Any, tmp_path: Path) -> None:
    first = stacx(*GIVEN, "--print-config", STACX_KL_LOSS_COEF="0.01")
    (tmp_path / "run.toml").write_text(first.out)
    second = stacx("train", "--config", tmp_path / "run.toml", "--print-config")
    assert (first.code, second.code) == (0, 0)
    assert tomllib.loads(first.out) == tomllib.loads(second.out)
    assert "lr = 1e-05  # flag" in first.out
    assert "kl_loss_coef = 0.01  # environment" in first.out
    assert "n_samples_per_prompt = 8  # recipe default" in first.out
    assert "rollout_shuffle = false  # flag" in first.out
    assert f"seed = 7  # config file {tmp_path / 'run.toml'}" in second.out


def test_a_file_may_begin_with_a_byte_order_mark_and_have_empty_sections(stacx: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[recipe]\nalgorithm = "sft"\n[plugins]\n[grpo]\n', encoding="utf-8-sig")
    done = stacx("train", "--config", tmp_path / "run.toml", "--print-config")
    assert done.code == 0, done.err
    assert "eps_clip" not in done.out


def test_flag_beats_variable_beats_file(stacx: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[recipe]\nalgorithm = "grpo"\n[rollout]\nn_samples_per_prompt = 5\n')
    command = ["train", "--config", file, "--print-config"]

    def group_size(*flags: str, **environment: str) -> int:
        return int(tomllib.loads(stacx(*command, *flags, **environment).out)["rollout"]["n_samples_per_prompt"])

    assert group_size() == 5
    assert group_size(STACX_N_SAMPLES_PER_PROMPT="6") == 6
    assert group_size("--n-samples-per-prompt", "7", STACX_N_SAMPLES_PER_PROMPT="6") == 7


@pytest.mark.parametrize(
    ("source", "recipe"),
    [
        (["--loss-type", "sft_loss"], "sft"),
        (["--advantage-estimator", "grpo"], "grpo"),
        ([], "grpo"),
    ],
)
def test_the_recipe_follows_from_other_knobs(stacx: Any, source: list[str], recipe: str) -> None:
    done = stacx("train", *source, "--print-config")
    assert done.code == 0
    assert ("eps_clip" in done.out) == (recipe == "grpo")


def test_help_shows_the_knobs_of_the_recipe_asked_for(stacx: Any) -> None:
    grpo, sft, host = (
        stacx("train", *flags, "--help") for flags in (["--algorithm", "grpo"], ["--algorithm", "sft"], [])
    )
    assert [done.code for done in (grpo, sft, host)] == [0, 0, 0]
    assert "[STACX_EPS_CLIP; default 0.2]" in " ".join(grpo.out.split())
    assert "--eps-clip" not in sft.out + host.out
    assert all("--lr FLOAT" in done.out for done in (grpo, sft, host))


def test_a_dry_run_checks_the_data_and_trains_nothing(train: Any, tmp_path: Path) -> None:
    done = train("grpo", "--rm-type", "exact", "--num-epoch", "2", "--dry-run")
    assert done.code == 0
    assert done.out == "grpo: 6 rollouts of 4 x 8, 12 prompts, 0 held out; nothing was trained\n"
    assert not (tmp_path / "run").exists()


GOOD = '{"prompt": "1+1=", "label": "2"}\n'
CHAT = '{"prompt": [{"role": "user", "content": "1+1="}], "label": "2"}\n'


@pytest.mark.parametrize("mode", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("algorithm", "rows", "flags", "message"),
    [
        ("sft", GOOD + '{"prompt": "1+1="}\n', [], "data.jsonl, line 2: no field 'label'"),
        ("sft", GOOD + CHAT, [], "data.jsonl, line 2: the prompt is a list of chat messages, but the tokenizer"),
        ("grpo", GOOD + CHAT, [], "data.jsonl, line 2: the prompt is a list of chat messages, but the tokenizer"),
        ("grpo", GOOD, ["--max-sequence-len", "7"], "no prompt leaves room for --rollout-max-response-len 4 within 7"),
        ("sft", GOOD, ["--max-sequence-len", "4"], "all 1 rows lose their response to the limit of 4 tokens"),
        ("grpo", GOOD, ["--apply-chat-template", "always"], "the tokenizer has no chat template"),
    ],
)
def test_unusable_rows_are_found_before_a_model_is_loaded(
    train: Any,
    checkpoint: Path,
    tmp_path: Path,
    algorithm: str,
    rows: str,
    flags: list[str],
    mode: list[str],
    message: str,
) -> None:
    shutil.copytree(checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    (tmp_path / "data.jsonl").write_text(rows)
    given = ["--prompt-data", tmp_path / "data.jsonl", "--hf-checkpoint", tmp_path / "bare", "--num-rollout", "1"]
    done = train(algorithm, "--rm-type", "exact", *given, *flags, *mode)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", [[], ["--calculate-per-token-loss"], ["--num-steps-per-rollout", "2"]])
def test_the_stored_and_the_printed_configuration_repeat_a_run(
    train: Any, stacx: Any, metrics: Any, tmp_path: Path, flags: list[str]
) -> None:
    printed = train("sft", "--num-rollout", "1", *flags, "--print-config")
    assert train("sft", "--num-rollout", "1", *flags).code == 0
    (tmp_path / "printed.toml").write_text(printed.out)
    for name, file in (("printed", tmp_path / "printed.toml"), ("stored", tmp_path / "run" / "config.toml")):
        again = stacx("train", "--config", file, "--output-dir", tmp_path / name)
        assert again.code == 0, again.err
        assert metrics(tmp_path / name) == metrics(tmp_path / "run")


def test_an_output_folder_is_not_used_twice(train: Any) -> None:
    assert train("sft", "--num-rollout", "1").code == 0
    done = train("sft", "--num-rollout", "1")
    assert done.code == 2
    assert "holds a run already: add --resume to go on, or choose another --output-dir" in done.err
