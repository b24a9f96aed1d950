"""`stacx train --environment`: training on episodes and evaluating in an environment, through the command."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OUTCOMES = ("done", "turn_limit", "context_overflow", "env_error", "env_timeout")


@pytest.fixture
def play(stacx: Any, games: Path, checkpoint: Path, tmp_path: Path) -> Callable[..., Any]:
    """`stacx train --algorithm grpo` on one of the games."""

    def run(*arguments: str, game: str = "games:Digits", output: str = "run", **environment: str) -> Any:
        return stacx("train", *options(game, checkpoint, tmp_path / output), *arguments, **environment)

    return run


def options(game: str, checkpoint: Path, output: Path) -> list[str]:
    return [
        *("--algorithm", "grpo", "--hf-checkpoint", str(checkpoint), "--environment", game),
        *("--output-dir", str(output), "--rollout-batch-size", "5", "--n-samples-per-prompt", "4"),
        *("--rollout-max-response-len", "4", "--lr", "1e-3", "--num-rollout", "2"),
    ]


@pytest.mark.parametrize(
    "flags",
    ["", "--num-steps-per-rollout 2", "--num-tasks 3", "--env-workers 1", "--loss-aggregation token_mean", "--use-tis"],
)
def test_grpo_trains_on_episodes(play: Any, metrics: Any, tmp_path: Path, flags: str) -> None:
    done = play(*flags.split())
    assert done.code == 0, done.err
    for line in metrics(tmp_path / "run"):
        assert all(math.isfinite(value) for value in line.values())
        assert line["rollout/outcome_done"] == 20
        assert 1 <= line["rollout/turns_mean"] <= 3
        assert line["rollout/environment_tokens"] > 0
        assert line["rollout/loss_tokens"] == line["rollout/response_tokens"] - line["rollout/environment_tokens"]
        assert line["train/reward_mean"] == pytest.approx(line["rollout/reward_mean"])
        assert line["train/flat_group_frac"] < 1
    first = metrics(tmp_path / "run")[0]
    assert first["train/train_rollout_abs_diff"] < 1e-4
    assert first["train/train_rollout_ratio"] == pytest.approx(1, abs=1e-4)


def test_the_number_of_environments_at_a_time_changes_nothing(play: Any, metrics: Any, tmp_path: Path) -> None:
    assert play(output="many").code == 0
    assert play("--env-workers", "1", output="one").code == 0
    assert metrics(tmp_path / "many") == metrics(tmp_path / "one")


def test_episodes_that_the_environment_fails_are_counted_and_left_out(play: Any, metrics: Any, tmp_path: Path) -> None:
    done = play(game="games:Fragile")
    assert done.code == 0, done.err
    for line in metrics(tmp_path / "run"):
        assert line["rollout/outcome_env_error"] in (4, 8, 12, 16)
        assert line["rollout/outcome_env_error"] + line["rollout/outcome_done"] == 20
        assert line["rollout/removed"] == line["rollout/outcome_env_error"]
        assert line["train/skipped_step"] == 0


def test_an_environment_that_fails_every_episode_ends_the_run(play: Any) -> None:
    done = play(game="games:Broken")
    assert done.code == 1
    assert "20 of 20 episodes failed; task train/0: env_error: ValueError: the game broke" in done.err


def test_a_command_ends_while_environments_still_hang(
    games: Path, child: Any, metrics: Any, checkpoint: Path, tmp_path: Path
) -> None:
    command = options("games:Stuck", checkpoint, tmp_path / "run")
    done = child("-m", "stacx_core", "train", *command, "--episode-timeout", "3", "--num-rollout", "1")
    assert done.returncode == 0, done.stderr
    (line,) = metrics(tmp_path / "run")
    assert line["rollout/removed"] == line["rollout/outcome_env_timeout"] in (4, 8, 12, 16)
    assert line["rollout/outcome_env_timeout"] + line["rollout/outcome_done"] == 20


def test_turn_limit_and_full_context_are_outcomes(play: Any, metrics: Any, tmp_path: Path) -> None:
    assert play("--max-turns", "1", output="short").code == 0
    assert play("--max-sequence-len", "12", output="narrow").code == 0
    for line in metrics(tmp_path / "short"):
        assert 0 < line["rollout/outcome_turn_limit"] < 20
        assert line["rollout/turns_mean"] == 1
    assert sum(line["rollout/outcome_context_overflow"] for line in metrics(tmp_path / "narrow")) > 0


def test_the_group_filter_replaces_tasks(play: Any, metrics: Any, tmp_path: Path) -> None:
    flags = ["--dynamic-sampling-filter", "reward_std", "--dynamic-sampling-max-rounds", "2"]
    assert play(*flags, game="games:Paying").code == 0
    for line in metrics(tmp_path / "run"):
        assert (line["rollout/sampling_rounds"], line["rollout/filtered_groups"]) == (2, 10)
        assert line["train/skipped_step"] == 1


def test_evaluation_plays_the_held_out_tasks(play: Any, metrics: Any, tmp_path: Path) -> None:
    assert play("--eval-tasks", "16", game="games:Paying").code == 0
    first, *_, last = metrics(tmp_path / "run")
    assert first["eval/episodes"] == last["eval/episodes"] == 16
    assert first["eval/success_rate"] == first["eval/reward_mean"]
    assert 0 < first["eval/success_rate"] < 1
    assert Counter({name: first[f"eval/outcome_{name}_frac"] for name in OUTCOMES}) == Counter(done=1.0)
    assert play("--eval-tasks", "16", "--lr", "0", game="games:Paying", output="again").code == 0
    still = [{k: v for k, v in line.items() if k.startswith("eval/")} for line in metrics(tmp_path / "again")]
    assert still[0] == still[-1]


def test_sft_is_evaluated_in_an_environment(train: Any, games: Path, metrics: Any, tmp_path: Path) -> None:
    done = train("sft", "--num-rollout", "1", "--environment", "games:Paying", "--eval-tasks", "8")
    assert done.code == 0, done.err
    assert [line["eval/episodes"] for line in metrics(tmp_path / "run")] == [8, 8]


def test_a_dry_run_begins_one_episode(play: Any) -> None:
    done = play("--dry-run", "--eval-tasks", "3")
    assert (done.code, done.err) == (0, "")
    assert done.out == "grpo: 2 rollouts of 5 x 4, tasks of games:Digits, 3 held out; nothing was trained\n"
    refused = play("--dry-run", game="textarena:TicTacToe-v0")
    assert refused.code == 2
    assert "--environment textarena:TicTacToe-v0: its first task fails: AssertionError" in refused.err


@pytest.mark.parametrize("num_tasks", [[], ["--num-tasks", "3"]])
def test_a_run_killed_in_the_middle_of_an_episode_goes_on_the_same(
    play: Any, child: Any, metrics: Any, checkpoint: Path, tmp_path: Path, num_tasks: list[str]
) -> None:
    flags = ["--num-rollout", "6", "--save-interval", "2", "--eval-tasks", "4", "--eval-interval", "3", *num_tasks]
    assert play(*flags, output="unbroken").code == 0
    lines = metrics(tmp_path / "unbroken")
    steps = [20 * line.get("rollout/turns_mean", 0) + 4 * line.get("eval/turns_mean", 0) for line in lines]
    command = ["train", *options("games:Digits", checkpoint, tmp_path / "killed"), *flags]
    fatal = str(round(sum(steps[:5]) + steps[5] / 2))
    killed = child("-m", "stacx_core", *command, FATAL_CALL=fatal, FATAL_SIGNAL=str(int(signal.SIGKILL)))
    assert killed.returncode == -signal.SIGKILL
    assert [line["rollout"] for line in metrics(tmp_path / "killed")] == [0, 1, 2, 3, 4]
    resumed = play(*flags, "--resume", output="killed")
    assert resumed.code == 0, resumed.err
    assert metrics(tmp_path / "killed") == lines
    weights = [tmp_path / name / "checkpoints/latest/policy/model.safetensors" for name in ("unbroken", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_run_is_not_resumed_with_other_tasks(play: Any, sums: Path) -> None:
    assert play().code == 0
    done = play("--resume", "--num-tasks", "3")
    assert done.code == 1
    assert "cannot resume with other tasks: --num-tasks was None and is 3" in done.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt-data", "x.jsonl"], "--prompt-data and --environment are both set"),
        (["--rm-type", "exact"], "--rm-type and --environment are both set"),
        (["--eval-tasks", "2", "--eval-prompt-data", "x.jsonl"], "--eval-tasks and --eval-prompt-data are both set"),
        (["--environment", "games:Digit"], "did you mean 'Digits'"),
        (["--max-turns", "0"], "--max-turns: 0 is below the minimum 1"),
        (["--algorithm", "sft", "--prompt-data", "x.jsonl", "--n-samples-per-prompt", "1"], "plays no episodes"),
    ],
)
def test_settings_that_contradict_an_environment(play: Any, flags: list[str], message: str) -> None:
    done = play(*flags)
    assert done.code == 2
    assert message in done.err


def test_ever_new_tasks_have_no_epochs(stacx: Any, games: Path, checkpoint: Path, tmp_path: Path) -> None:
    given = options("games:Digits", checkpoint, tmp_path / "run")[:-2]
    done = stacx("train", *given, "--num-epoch", "1")
    assert done.code == 2
    assert "--num-epoch needs --num-tasks" in done.err
    assert stacx("train", *given, "--num-epoch", "2", "--num-tasks", "5").code == 0
