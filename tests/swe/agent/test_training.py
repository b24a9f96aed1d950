"""Recipes on tasks: GRPO by itself, and what its metrics say."""

from __future__ import annotations

import json

import pytest

EXPERT = "stacx_core.swe.agent.expert:SolutionExpert"


@pytest.fixture
def folder(provider, make_task, tmp_path):
    """Two tasks to train on, one of which has no reward, and one held out."""
    make_task("tasks/a")
    make_task("tasks/b", dockerfile="FROM x\nWORKDIR /app\nRUN exit 3\n")
    make_task("tasks/c")
    (tmp_path / "tasks/held_out.txt").write_text("c\n")
    return tmp_path / "tasks"


@pytest.fixture
def run(stacx, folder, speaker, tmp_path):
    """One rollout of a recipe on the tasks, all of them once."""

    def train(algorithm, *arguments, environment=f"harbor:{folder}"):
        given = ["--algorithm", algorithm, "--environment", environment, "--hf-checkpoint", speaker, "--lr", "1e-3"]
        given += ["--num-tasks", "2", "--num-rollout", "1", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2"]
        given += ["--rollout-max-response-len", "4", "--max-turns", "2", "--output-dir", tmp_path / "run"]
        return stacx("train", *given, *arguments)

    return train


def test_grpo_trains_on_episodes_and_leaves_out_broken_sandboxes(run, metrics, tmp_path):
    done = run("grpo", "--eval-tasks", "1")
    assert done.code == 0, done.err
    rows = metrics(tmp_path / "run")
    rollout = next(row for row in rows if "rollout/outcome_turn_limit" in row)
    assert (rollout["rollout/outcome_turn_limit"], rollout["rollout/outcome_env_error"]) == (2.0, 2.0)
    assert (rollout["rollout/count_SandboxError"], rollout["rollout/count_malformed_actions"]) == (2.0, 4.0)
    assert (rollout["rollout/count_solved"], rollout["rollout/count_malformed"]) == (0.0, 0.0)
    assert any(row.get("eval/count_malformed_actions") == 2.0 for row in rows)


def test_held_out_tasks_that_are_not_there_are_missed_at_the_start(run, folder):
    (folder / "held_out.txt").unlink()
    done = run("grpo", "--eval-tasks", "1")
    assert (done.code, "has no held-out tasks" in done.err) == (2, True), done.err


@pytest.mark.parametrize("way", [[], ["--dry-run"], ["--harness", "true"]])
def test_more_tasks_than_there_are_are_refused(run, folder, way):
    done = run("grpo", "--eval-tasks", "2", *way)
    assert done.code == 2
    told = f"--eval-tasks is 2, but --environment harbor:{folder} has 1 task held out; pass --eval-tasks 1"
    assert told in " ".join(done.err.split())
    done = run("grpo", "--num-tasks", "3", *way)
    assert done.code == 2
    told = f"--num-tasks is 3, but --environment harbor:{folder} has 2 tasks to train on; pass --num-tasks 2 or less"
    assert told in " ".join(done.err.split())


def test_an_evaluation_alone_asks_for_no_more_tasks_than_there_are(stacx, folder, speaker, tmp_path):
    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "sft.jsonl").write_text(json.dumps({"messages": told}) + "\n")
    given = ["--prompt-data", tmp_path / "sft.jsonl", "--input-key", "messages", "--hf-checkpoint", speaker]
    given += ["--num-epoch", "1", "--rollout-batch-size", "1", "--environment", f"harbor:{folder}", "--eval-tasks", "2"]
    done = stacx("train", "--algorithm", "sft", *given, "--output-dir", tmp_path / "run", "--dry-run")
    assert (done.code, "has 1 task held out" in " ".join(done.err.split())) == (2, True), done.err


def test_dagger_mixes_the_expert_in(run, metrics, folder, tmp_path):
    (folder / "held_out.txt").write_text("b\n")
    done = run(
        *("online_dagger", "--teacher", EXPERT, "--rollout-max-response-len", "400", "--max-turns", "4"),
        *("--n-samples-per-prompt", "1"),
    )
    assert done.code == 0, done.err
    rollout = next(row for row in metrics(tmp_path / "run") if "rollout/success_rate" in row)
    assert (rollout["rollout/success_rate"], rollout["rollout/teacher_turn_frac"]) == (1.0, 1.0)
    assert rollout["rollout/count_solved"] == 2.0
