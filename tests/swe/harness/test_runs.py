"""`stacx train --harness` with a harness of thirty lines."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

EXPERTS = """
def solve(observation):
    if observation.startswith("Write 1"):
        return "RUN echo 1 > score.txt && cat score.txt"
    return "RUN true"
"""


@pytest.fixture
def run(stacx: Any, talker: Path, small_tasks: Path, agent: str, tmp_path: Path, monkeypatch: Any) -> Any:
    """`stacx train` of a recipe on the small tasks, two rollouts of two tasks, two episodes of each."""
    (tmp_path / "harness_experts.py").write_text(EXPERTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "harness_experts", raising=False)

    def train(algorithm: str, *arguments: str) -> Any:
        given = ["--algorithm", algorithm, "--hf-checkpoint", talker, "--environment", f"harbor:{small_tasks}?pool=4"]
        given += ["--harness", agent, "--output-dir", tmp_path / "run", "--rollout-max-response-len", "12"]
        given += ["--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--num-rollout", "2", "--lr", "1e-3"]
        return stacx("train", *given, *arguments)

    return train


def test_grpo_trains_on_the_runs_of_a_harness(run: Any, metrics: Any, tmp_path: Path) -> None:
    done = run("grpo", "--dynamic-sampling-filter", "reward_std", "--dynamic-sampling-max-rounds", "3")
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert len(lines) == 2
    for line in lines:
        assert all(math.isfinite(value) for value in line.values())
        played = line["rollout/outcome_done"]
        assert line["rollout/count_solved"] + line["rollout/count_unsolved"] == played >= 4
        assert line["rollout/turns_mean"] == 3
        assert line["rollout/count_harness_crashed"] == line["rollout/outcome_env_error"] == 0
        assert line["rollout/loss_tokens"] == line["rollout/response_tokens"] - line["rollout/environment_tokens"]
        assert line["train/train_rollout_abs_diff"] < 1e-4


def test_a_teacher_takes_turns_behind_the_endpoint(run: Any, metrics: Any, tmp_path: Path) -> None:
    share = ["--dagger-beta-start", "1", "--dagger-beta-end", "0.5", "--dagger-beta-decay", "1"]
    done = run("online_dagger", "--teacher", "harness_experts:solve", "--rollout-max-response-len", "64", *share)
    assert done.code == 0, done.err
    taught, mixed = metrics(tmp_path / "run")
    assert (taught["rollout/teacher_turn_frac"], taught["rollout/success_rate"]) == (1, 1)
    assert taught["rollout/outcome_full_teacher"] == 4
    assert 0 < mixed["rollout/teacher_turn_frac"] < 1
    assert mixed["rollout/teacher_tokens"] > 0
    assert mixed["train/loss"] < taught["train/loss"]


def test_every_state_that_was_visited_is_labelled(
    run: Any, metrics: Any, tokenizer: Any, label_files: Any, tmp_path: Path
) -> None:
    """The labels are kept for replays: one for each answer of each run of the harness, whoever gave it."""
    done = run(
        *("online_dagger", "--teacher", "harness_experts:solve", "--rollout-max-response-len", "64"),
        *("--dagger-beta-start", "0.5", "--dagger-beta-end", "0.5", "--dagger-replay", "1"),
    )
    assert done.code == 0, done.err
    log = [json.loads(line) for line in (tmp_path / "run/roll_in.jsonl").read_text().splitlines()]
    for line, record, episodes in zip(metrics(tmp_path / "run"), log, label_files(tmp_path / "run"), strict=True):
        assert (record["labels"], record["turns"], record["dropped_labels"], len(episodes)) == (12, 12, 0, 4)
        visitors = [label["metadata"]["visited_by"] for episode in episodes for label in episode]
        assert set(visitors) == {"student", "teacher"}
        assert visitors.count("teacher") / 12 == line["rollout/teacher_turn_frac"]
        for episode in episodes:
            assert [set(label["turn_ids"]) for label in episode] == [{0}, {1}, {2}]
            assert episode[0]["prompt"] == "Write 1 into score.txt."
            before: list[int] = []
            for label in episode:
                wanted = "RUN echo 1 > score.txt && cat score.txt" if label is episode[0] else "RUN true"
                assert label["response"] == wanted
                context = label["tokens"][: -label["response_length"]]
                assert tokenizer.decode(label["tokens"][len(context) :], skip_special_tokens=True) == wanted
                assert context[: len(before)] == before != context
                assert label["prompt"] in tokenizer.decode(context[len(before) :])
                before = context


@pytest.mark.parametrize("recipe", ["opd", "mixture_dagger_opd", "mixture_aggrevate_opd"])
def test_a_model_teaches_behind_the_endpoint(run: Any, metrics: Any, talker: Path, tmp_path: Path, recipe: str) -> None:
    share = {
        "opd": [],
        "mixture_dagger_opd": ["--dagger-beta-start", "0.5"],
        "mixture_aggrevate_opd": ["--aggrevate-start", "2", "--aggrevate-per", "sample"],
    }
    done = run(recipe, "--teacher", "model", "--teacher-load", str(talker), "--num-rollout", "1", *share[recipe])
    assert done.code == 0, done.err
    (line,) = metrics(tmp_path / "run")
    assert all(math.isfinite(value) for value in line.values())
    assert line["rollout/turns_mean"] == 3
    assert 0 < line["rollout/loss_tokens"] < line["rollout/response_tokens"]
    if recipe != "opd":
        assert 0 < line["rollout/teacher_turn_frac"] < 1
        assert line["rollout/outcome_mixed"] > 0
        assert line["rollout/scored_tokens"] > 0


def test_held_out_tasks_are_evaluated_by_the_harness(run: Any, metrics: Any, small_tasks: Path, tmp_path: Path) -> None:
    (small_tasks / "held_out.txt").write_text("second\n")
    done = run("grpo", "--num-rollout", "1", "--eval-tasks", "1")
    assert done.code == 0, done.err
    first = metrics(tmp_path / "run")[0]
    assert first["eval/episodes"] == first["eval/outcome_done_frac"] == 1
    assert first["eval/turns_mean"] == 3


def test_a_corpus_is_collected_through_the_harness(
    run: Any, stacx: Any, talker: Path, small_tasks: Path, agent: str, tmp_path: Path
) -> None:
    given = ["--hf-checkpoint", talker, "--environment", f"harbor:{small_tasks}", "--harness", agent]
    given += ["--teacher", "harness_experts:solve", "--num-episodes", "2", "--output-dir", tmp_path / "corpus"]
    done = stacx("collect", *given)
    assert done.code == 0, done.err
    assert "2 episodes" in done.err
    assert "mean reward 1.000" in done.err


def test_a_checkpoint_is_evaluated_with_the_harness(
    run: Any, stacx: Any, talker: Path, small_tasks: Path, agent: str, tmp_path: Path
) -> None:
    given = [small_tasks, "--hf-checkpoint", talker, "--harness", agent, "--eval-max-response-len", "12"]
    done = stacx("eval", *given, "--samples", "2", "--eval-temperature", "1", "--output-dir", tmp_path / "eval")
    assert done.code == 0, done.err
    episodes = [json.loads(line) for line in (tmp_path / "eval/episodes.jsonl").read_text().splitlines()]
    assert sorted((line["task"], line["sample"]) for line in episodes) == [
        ("first", 0),
        ("first", 1),
        ("second", 0),
        ("second", 1),
    ]
    assert all(line["verdict"] in ("solved", "unsolved") for line in episodes)


def test_ctrl_c_ends_the_harnesses(
    child: Any, talker: Path, small_tasks: Path, program: Any, agent: str, traces: Any, tmp_path: Path
) -> None:
    """The first harness that was answered sends the signal to the run, which its parent has as an argument."""
    signalled = """
import pathlib, signal, time
try:
    pathlib.Path("../sent").touch(exist_ok=False)
    os.kill(int(open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[3]), signal.SIGINT)
except FileExistsError:
    pass
time.sleep(1000)
"""
    command = program(Path(agent.split()[1]).read_text() + signalled)
    given = ["--algorithm", "grpo", "--hf-checkpoint", talker, "--environment", f"harbor:{small_tasks}?pool=2"]
    given += ["--harness", command, "--output-dir", tmp_path / "run", "--rollout-batch-size", "2"]
    given += ["--rollout-max-response-len", "12", "--num-rollout", "1", "--n-samples-per-prompt", "2", "--lr", "1e-3"]
    done = child("-m", "stacx_core", "train", *map(str, given))
    assert done.returncode == 130, done.stderr
    assert set(traces.processes()) <= {os.getpid()}


def test_a_failing_teacher_ends_the_run_while_harnesses_wait(run: Any) -> None:
    done = run("online_dagger", "--teacher", "json:loads", "--teacher-retries", "0")
    assert done.code == 1
    assert "the teacher failed" in done.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--harness", "mini-swee"], "no program 'mini-swee' (did you mean 'mini-swe'?)"),
        (["--harness", "cat {taskfile}"], "{taskfile} means nothing (did you mean 'task_file'?)"),
        (["--harness", "cat '"], "is no command"),
        (["--harness", "A=b"], "there is no program ''"),
        (
            ["--environment", "reasoning_gym:leg_counting"],
            "--harness works on the tasks of --environment harbor:FOLDER",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(run: Any, flags: list[str], told: str) -> None:
    done = run("grpo", *flags)
    assert done.code == 2
    assert told in done.err
