"""Wrong flags, variables and config keys end `stacx train` with exit code 2 before a model is looked for.

No checkpoint folder exists in these tests, so that a run that came as far as the model would complain about that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

COMPLETE = [
    "train",
    "--algorithm",
    "grpo",
    "--hf-checkpoint",
    "./none",
    "--prompt-data",
    "none.jsonl",
    "--rm-type",
    "exact",
    "--num-rollout",
    "2",
    "--output-dir",
    "./run",
]
SGLANG = ["--rollout-engine", "sglang", "--sglang-url", "http://localhost:1"]


def refused(done: Any, message: str) -> None:
    assert done.code == 2
    assert message in done.err
    assert "./none" not in done.err
    assert done.out == ""


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--print-config"]])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kl-loss-ceof", "0.1"], "no option --kl-loss-ceof for recipe 'grpo' (did you mean '--kl-loss-coef'?)"),
        (["--max-step", "50"], "no option --max-step"),
        (["--lr", "fast"], "--lr: expected float, got 'fast'"),
        (["--lr", "-1"], "--lr: -1.0 is below the minimum 0"),
        (["--lr"], "--lr"),
        (["--dtype", "fp23"], "--dtype: 'fp23' is not one of fp32, bf16 (did you mean 'fp32'?)"),
        (["--rollout-top-k", "0"], "--rollout-top-k: 0 must be -1 or at least 1"),
        (["--rollout-temperature", "0"], "--rollout-temperature: 0.0 must be greater than 0"),
        (["--use-kl-loss=maybe"], "--use-kl-loss"),
        (["--num-threads", "100000"], "logical CPU(s) of this machine"),
        (["--resume="], "--resume: '' is empty; use never, auto, or the name or the path of a checkpoint"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_flag(stacx: Any, mode: Any, flags: Any, message: str) -> None:
    refused(stacx(*COMPLETE, *flags, *mode), message)


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--print-config"]])
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("STACX_KL_LOSS_CEOF", "0.1", "STACX_KL_LOSS_CEOF (did you mean 'STACX_KL_LOSS_COEF'?)"),
        ("STACX_LR", "fast", "environment variable STACX_LR: expected float, got 'fast'"),
        ("STACX_ALGORITHM", "", "''"),
        ("STACX_RESUME", " ", "environment variable STACX_RESUME: ' ' is empty; use never, auto"),
    ],
)
def test_a_wrong_variable(stacx: Any, mode: Any, variable: str, value: str, message: str) -> None:
    command = [arg for arg in COMPLETE if arg not in ("--algorithm", "grpo")]
    refused(stacx(*command, *mode, **{variable: value}), message)


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--print-config"]])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grpo]\nkl_loss_ceof = 0.01\n", "unknown key 'grpo.kl_loss_ceof' (did you mean 'grpo.kl_loss_coef'?)"),
        ("[trainer]\nmax_step = 50\n", "unknown key 'trainer.max_step'"),
        ("[trainer]\nlr = 1e-6\n", "unknown key 'trainer.lr' (it belongs in [optimizer])"),
        ("trainer..lr = 1e-6\n", "run.toml"),
        ("[optimiser]\n", "run.toml: unknown section [optimiser] (did you mean 'optimizer'?)"),
        (
            "[weights_and_biases]\nname = 1\n",
            "run.toml: unknown section [weights_and_biases]; there are advantages, dagger, data, distill, environment,",
        ),
        ("[recipe]\nalgorithm = 3\n", "run.toml: recipe.algorithm: expected str, got int 3"),
        ("[plugins]\nenable = 3\n", "plugins.enable in {folder}/run.toml is 3; it must be a list of plugin names"),
        ("plugins = 3\n", "run.toml: key 'plugins' stands outside a table"),
        ('[optimizer]\nlr = "1e-6"\n', "optimizer.lr: expected float, got str '1e-6'"),
        ("[optimizer]\nlr = 1e-6\nlr = 1e-5\n", "Cannot overwrite a value"),
    ],
)
def test_a_wrong_config_key(stacx: Any, tmp_path: Path, mode: Any, text: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    command = without("--algorithm") if "algorithm" in text else COMPLETE
    refused(stacx(*command, "--config", tmp_path / "run.toml", *mode), message.format(folder=tmp_path))


def test_a_missing_config_file(stacx: Any) -> None:
    refused(stacx(*COMPLETE, "--config", "none.toml"), "none.toml: No such file")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--eps-clip", "0.1"], {}), (["--use-kl-loss"], {}), ([], {"STACX_EPS_CLIP": "0.1"})],
)
def test_a_knob_of_another_recipe(stacx: Any, arguments: list[str], environment: dict[str, str]) -> None:
    command = [{"grpo": "sft"}.get(arg, arg) for arg in COMPLETE]
    done = stacx(*command, *arguments, **environment)
    refused(done, (arguments or list(environment))[0])
    assert "is a knob of recipes 'cispo', 'dapo', 'grpo'," in done.err


def without(flag: str) -> list[str]:
    """The complete command without a flag and its value."""
    at = COMPLETE.index(flag)
    return COMPLETE[:at] + COMPLETE[at + 2 :]


@pytest.mark.parametrize("flag", ["--hf-checkpoint", "--prompt-data", "--rm-type", "--output-dir"])
def test_a_required_knob_left_out(stacx: Any, flag: str) -> None:
    refused(stacx(*without(flag)), f"recipe 'grpo' needs {flag}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-epoch", "1"], "--num-rollout and --num-epoch are both set"),
        (["--global-batch-size", "257"], "do not fill"),
        (["--global-batch-size", "100", "--num-steps-per-rollout", "3"], "contradicts"),
        (["--num-steps-per-rollout", "500"], "do not fill 500 step(s)"),
        (["--calculate-per-token-loss", "--loss-aggregation", "constant"], "it is constant"),
        (["--calculate-per-token-loss", "--loss-aggregation", "sample_mean"], "it is sample_mean"),
        (["--use-kl-loss"], "--ref-load"),
        (["--tis-clip", "3"], "has no effect without --use-tis"),
        (["--max-turns", "3"], "--max-turns has no effect without --environment"),
        (["--eval-tasks", "3"], "--eval-tasks has no effect without --environment"),
        (["--eval-interval", "2"], "--eval-interval has no effect without --eval-prompt-data or --eval-tasks; add it"),
        (["--eval-limit", "2"], "--eval-limit has no effect without --eval-prompt-data"),
        (["--eval-temperature", "1"], "--eval-temperature has no effect without --eval-prompt-data"),
        (["--skip-eval-before-train"], "--skip-eval-before-train has no effect without --eval-prompt-data"),
        (["--eval-rm-type", "exact"], "--eval-rm-type has no effect without --eval-prompt-data"),
        (["--rm-load", "./reward"], "--rm-load has no effect without --rm-type model or --eval-rm-type model"),
        (
            ["--dynamic-sampling-filter", "reward_std", "--n-samples-per-prompt", "1"],
            "reward_std keeps groups whose rewards differ, which a group of one never does",
        ),
        (
            ["--over-sampling-batch-size", "64"],
            "--over-sampling-batch-size needs --rollout-engine sglang: the local engine decodes a batch to its end",
        ),
        ([*SGLANG, "--over-sampling-batch-size", "31"], "31 is below --rollout-batch-size 32; raise it"),
        ([*SGLANG, "--partial-rollout"], "--partial-rollout has no effect without --over-sampling-batch-size"),
        (
            [*SGLANG, "--over-sampling-batch-size", "32", "--partial-rollout"],
            "--over-sampling-batch-size 32 is --rollout-batch-size, and no --dynamic-sampling-filter asks for more",
        ),
        (
            [*SGLANG, "--over-sampling-batch-size", "64", "--mask-offpolicy-in-partial-rollout"],
            "--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout; add it",
        ),
        (["--algorithm", "gpro"], "no recipe is named 'gpro'; the closest are: gspo, grpo, ppo"),
    ],
)
def test_knobs_that_contradict_each_other(stacx: Any, flags: list[str], message: str) -> None:
    refused(stacx(*COMPLETE, *flags), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": "sft"}, "the samples of this recipe cannot be stopped half-way"),
        ({"--prompt-data": "--environment", "none.jsonl": "reasoning_gym:x"}, "episodes cannot be stopped half-way"),
    ],
)
def test_nothing_is_sampled_that_could_be_stopped(stacx: Any, changes: dict[str, str], message: str) -> None:
    command = [changes.get(arg, arg) for arg in COMPLETE]
    if "--environment" in command:
        command = [arg for arg in command if arg not in ("--rm-type", "exact")]
    done = stacx(*command, *SGLANG, "--over-sampling-batch-size", "64")
    refused(done, f"--over-sampling-batch-size is for responses sampled to prompts; {message}")


def test_prompts_or_an_environment(stacx: Any) -> None:
    refused(stacx(*without("--prompt-data")), "or the config file), or episodes to play with --environment")


def test_no_length_of_the_run(stacx: Any) -> None:
    refused(stacx(*without("--num-rollout")), "--num-rollout or --num-epoch")


def test_an_unusable_checkpoint_is_a_usage_error_too(stacx: Any) -> None:
    done = stacx(*COMPLETE)
    assert done.code == 2
    assert "no folder './none'" in done.err


def test_defaults_in_a_stored_configuration_are_no_demands(stacx: Any, tmp_path: Path) -> None:
    stored = stacx(*COMPLETE, "--print-config").out
    assert "eval_temperature = 0.0" in stored
    assert "skip_eval_before_train = false" in stored
    (tmp_path / "run.toml").write_text(stored)
    done = stacx("train", "--config", tmp_path / "run.toml")
    assert "no folder './none'" in done.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tensor-model-parallel-size", "3"], "--tensor-model-parallel-size 3 does not divide the 4 attention heads"),
        (["--expert-model-parallel-size", "2", "--num-gpus-per-node", "2"], "has no experts; use 1"),
    ],
)
def test_a_layout_that_does_not_fit_the_model(stacx: Any, checkpoint: Path, flags: list[str], message: str) -> None:
    pytest.importorskip("megatron.core")
    dry = [*COMPLETE, "--hf-checkpoint", str(checkpoint), "--backend", "megatron", "--dry-run"]
    done = stacx(*dry, *flags)
    assert (done.code, message in done.err) == (2, True), done.err
