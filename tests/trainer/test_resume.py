"""Six rollouts unbroken equal those of a run that was stopped on the way and resumed, to the last bit."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

Options = Callable[[str], list[str]]

DIES_IN_ITS_SECOND_SAVE = """
import os, signal, sys
import torch
from stacx_core.cli import main

save, calls = torch.save, []

def fatal_save(*arguments, **options):
    save(*arguments, **options)
    calls.append(1)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = fatal_save
main(sys.argv[1:])
"""


@pytest.fixture
def grpo(checkpoint: Path, sums: Path, tmp_path: Path, rewards: Path) -> Options:
    """Two and a half shuffled epochs of five prompts a rollout, two updates each, with a rate that falls."""

    def options(output: str) -> list[str]:
        return [
            *("train", "--algorithm", "grpo", "--hf-checkpoint", str(checkpoint), "--prompt-data", str(sums)),
            *("--label-key", "label", "--rm-type", "fatal_rewards:digits", "--output-dir", str(tmp_path / output)),
            *("--rollout-batch-size", "5", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "4"),
            *("--num-steps-per-rollout", "2", "--lr", "1e-3", "--lr-decay-style", "linear", "--num-rollout", "6"),
            *("--save-interval", "3"),
        ]

    return options


@pytest.fixture
def sft(checkpoint: Path, sums: Path, tmp_path: Path) -> Options:
    """A model with dropout, evaluated on the way, saved every second rollout."""
    model = tmp_path / "with_dropout"
    shutil.copytree(checkpoint, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.3}))

    def options(output: str) -> list[str]:
        return [
            *("train", "--algorithm", "sft", "--hf-checkpoint", str(model), "--prompt-data", str(sums)),
            *("--label-key", "label", "--output-dir", str(tmp_path / output), "--rollout-batch-size", "5"),
            *("--lr", "1e-3", "--lr-decay-style", "cosine", "--num-rollout", "6", "--save-interval", "2"),
            *("--eval-prompt-data", str(sums), "--rm-type", "exact", "--eval-interval", "2"),
            *("--rollout-max-response-len", "4", "--dtype", "bf16"),
        ]

    return options


def assert_same_run(metrics: Any, first: Path, second: Path) -> None:
    assert metrics(first) == metrics(second)
    latest = [folder / "checkpoints" / "latest" for folder in (first, second)]
    assert [path.resolve().name for path in latest] == ["rollout_000006"] * 2
    weights = [(path / "policy" / "model.safetensors").read_bytes() for path in latest]
    assert weights[0] == weights[1]
    states = [torch.load(path / "policy.optimizer.pt", weights_only=True) for path in latest]
    assert flat(states[0]) == flat(states[1])
    assert len({(path / "trainer.json").read_text() for path in latest}) == 1


def flat(state: Any) -> Any:
    """Nested containers of tensors as nested lists."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return [flat(value) for value in state] if isinstance(state, list | tuple) else state


def rollouts(metrics: Any, folder: Path) -> list[float]:
    return [line["rollout"] for line in metrics(folder)]


def test_a_run_killed_in_the_middle_of_a_rollout(
    stacx: Any, child: Any, metrics: Any, grpo: Options, tmp_path: Path
) -> None:
    """Twenty rewards a rollout: the 89th is in the fifth, after the checkpoint of the third."""
    assert stacx(*grpo("unbroken")).code == 0
    done = child("-m", "stacx_core", *grpo("killed"), FATAL_CALL="89", FATAL_SIGNAL=str(int(signal.SIGKILL)))
    assert done.returncode == -signal.SIGKILL
    assert rollouts(metrics, tmp_path / "killed") == [1, 2, 3, 4]
    resumed = stacx(*grpo("killed"), "--resume")
    assert resumed.code == 0, resumed.err
    assert_same_run(metrics, tmp_path / "unbroken", tmp_path / "killed")
    superseded = (tmp_path / "killed" / "metrics.superseded.jsonl").read_text().splitlines()
    assert [json.loads(line)["rollout"] for line in superseded] == [4]
    lr = [line["train/lr"] for line in metrics(tmp_path / "killed")]
    assert lr == pytest.approx([1e-3 * (1 - 2 * i / 12) for i in range(6)])


@pytest.mark.parametrize("how", [(), ("--async-save",)])
def test_a_run_killed_in_the_middle_of_a_save(
    stacx: Any, child: Any, metrics: Any, sft: Options, tmp_path: Path, how: tuple[str, ...]
) -> None:
    assert stacx(*sft("unbroken")).code == 0
    done = child("-c", DIES_IN_ITS_SECOND_SAVE, *sft("killed"), *how)
    assert done.returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [".writing-rollout_000004", "latest", "rollout_000002"]
    assert (folder / "latest").resolve().name == "rollout_000002"
    assert rollouts(metrics, tmp_path / "killed")[:5] == [0, 1, 2, 3, 4]
    resumed = stacx(*sft("killed"), "--resume", *how)
    assert resumed.code == 0, resumed.err
    assert_same_run(metrics, tmp_path / "unbroken", tmp_path / "killed")
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "rollout_000004", "rollout_000006"]


def test_dropout_is_drawn_in_training(stacx: Any, metrics: Any, sft: Options, checkpoint: Path, tmp_path: Path) -> None:
    assert stacx(*sft("with")).code == 0
    assert stacx(*sft("without"), "--hf-checkpoint", str(checkpoint)).code == 0
    first = [metrics(tmp_path / name)[0] for name in ("with", "without")]
    assert first[0] == first[1]
    losses = [metrics(tmp_path / name)[1]["train/loss"] for name in ("with", "without")]
    assert losses[0] != losses[1]


def test_ctrl_c_saves_and_the_run_goes_on(stacx: Any, child: Any, metrics: Any, grpo: Options, tmp_path: Path) -> None:
    assert stacx(*grpo("unbroken")).code == 0
    done = child("-m", "stacx_core", *grpo("stopped"), FATAL_CALL="30", FATAL_SIGNAL=str(int(signal.SIGINT)))
    assert done.returncode == 130
    assert "interrupted; saved after rollout 1, add --resume to go on" in done.stderr
    assert "Traceback" not in done.stderr
    assert rollouts(metrics, tmp_path / "stopped") == [1]
    assert (tmp_path / "stopped" / "checkpoints" / "latest").resolve().name == "rollout_000001"
    assert stacx(*grpo("stopped"), "--resume", "rollout_000001").code == 0
    assert_same_run(metrics, tmp_path / "unbroken", tmp_path / "stopped")


def test_a_reward_that_raises_ends_the_run_and_it_starts_over(
    stacx: Any, metrics: Any, grpo: Options, tmp_path: Path
) -> None:
    """The 25th reward is of sample 4 of the second rollout, before any checkpoint."""
    done = stacx(*grpo("failed"), FATAL_CALL="25")
    assert done.code == 1
    assert "reward fatal_rewards:digits on sample 4" in done.err
    assert "ValueError: no such answer" in done.err
    assert rollouts(metrics, tmp_path / "failed") == [1]
    assert stacx(*grpo("failed"), "--resume").code == 0
    assert stacx(*grpo("unbroken")).code == 0
    assert_same_run(metrics, tmp_path / "unbroken", tmp_path / "failed")


def finish_and_damage(stacx: Any, options: Sequence[str], folder: Path) -> None:
    assert stacx(*options).code == 0
    (folder / "checkpoints" / "rollout_000006" / "trainer.json").unlink()


def test_a_damaged_checkpoint_is_passed_over(
    stacx: Any, metrics: Any, grpo: Options, tmp_path: Path, caplog: Any
) -> None:
    finish_and_damage(stacx, grpo("damaged"), tmp_path / "damaged")
    caplog.clear()
    assert stacx(*grpo("damaged"), "--resume").code == 0
    ours = [record for record in caplog.records if record.name.startswith("stacx_core.")]
    warnings = [record.message for record in ours if record.levelname == "WARNING"]
    assert warnings == [
        "skipping checkpoint rollout_000006: trainer.json is missing",
        "checkpoint rollout_000006 is beyond the one resumed from and was set aside",
    ]
    assert stacx(*grpo("unbroken")).code == 0
    assert_same_run(metrics, tmp_path / "unbroken", tmp_path / "damaged")


def test_a_damaged_checkpoint_asked_for_by_name_is_an_error(stacx: Any, grpo: Options, tmp_path: Path) -> None:
    finish_and_damage(stacx, grpo("damaged"), tmp_path / "damaged")
    for name in ("rollout_000006", "latest", str(tmp_path / "damaged" / "checkpoints" / "rollout_000006")):
        done = stacx(*grpo("damaged"), "--resume", name)
        assert done.code == 1
        assert f"cannot resume from {name}: trainer.json is missing" in done.err


def test_a_finished_run_has_nothing_left_to_do(stacx: Any, metrics: Any, grpo: Options, tmp_path: Path) -> None:
    assert stacx(*grpo("run")).code == 0
    before = metrics(tmp_path / "run")
    done = stacx(*grpo("run"), "--resume")
    assert done.code == 0
    assert "all 6 rollouts were done already" in done.err
    assert metrics(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ["--algorithm", "sft", "--num-steps-per-rollout", "1", "--n-samples-per-prompt", "1"],
            "is of algorithm 'grpo', this run is 'sft'",
        ),
        (["--prompt-data", "{shorter}"], "the number of prompt rows was 12 and is 11"),
        (["--prompt-data", "{longer}"], "the number of prompt rows was 12 and is 13"),
        (["--prompt-data", "{other}"], "the fingerprint of the prompts was"),
        (["--seed", "7"], "--seed was 1234 and is 7"),
        (["--no-rollout-shuffle"], "--rollout-shuffle was True and is False"),
    ],
)
def test_a_run_is_not_resumed_as_another(
    stacx: Any, grpo: Options, sums: Path, tmp_path: Path, change: list[str], message: str
) -> None:
    lines = sums.read_text().splitlines(keepends=True)
    data = {"shorter": lines[:-1], "longer": [*lines, lines[0]], "other": [*lines[:-1], lines[0]]}
    files = {name: tmp_path / f"{name}.jsonl" for name in data}
    for name, path in files.items():
        path.write_text("".join(data[name]))
    assert stacx(*grpo("run")).code == 0
    before = contents(tmp_path / "run")
    done = stacx(*grpo("run"), "--resume", "rollout_000003", *[arg.format(**files) for arg in change])
    assert done.code == 1
    assert message in done.err
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_rows_elsewhere_and_more_rollouts_are_no_other_run(
    stacx: Any, metrics: Any, grpo: Options, sums: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.jsonl"
    shutil.copy(sums, moved)
    assert stacx(*grpo("run")).code == 0
    done = stacx(*grpo("run"), "--resume", "--prompt-data", str(moved), "--num-rollout", "7")
    assert done.code == 0, done.err
    assert rollouts(metrics, tmp_path / "run") == [1, 2, 3, 4, 5, 6, 7]


def test_loading_the_weights_alone_starts_the_schedule_anew(
    stacx: Any, metrics: Any, sft: Options, tmp_path: Path
) -> None:
    assert stacx(*sft("first")).code == 0
    weights = tmp_path / "first" / "checkpoints" / "latest" / "policy"
    assert stacx(*sft("second"), "--hf-checkpoint", str(weights)).code == 0
    first, second = metrics(tmp_path / "first"), metrics(tmp_path / "second")
    assert first[-1]["train/lr"] < 1e-4
    assert second[1]["train/lr"] == 1e-3
    assert second[0]["eval/reward_mean"] == first[-1]["eval/reward_mean"]
    assert second[1]["train/updates"] == 1


def test_a_checkpoint_of_another_backend_is_refused(stacx: Any, sft: Options, tmp_path: Path) -> None:
    assert stacx(*sft("other"), "--num-rollout", "2").code == 0
    checkpoint = tmp_path / "other" / "checkpoints" / "rollout_000002"
    done = stacx(*sft("other"), "--resume", "--backend", "megatron")
    assert done.code == 1
    assert f"{checkpoint} was written by --backend torch, whose optimizer's state --backend megatron" in done.err
    assert f"begin a new run from its weights: --hf-checkpoint {checkpoint / 'policy'}" in done.err
