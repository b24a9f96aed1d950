"""The twenty tasks of the examples: solved by their solutions, and not by doing nothing."""

from __future__ import annotations

from pathlib import Path

from stacx_core.swe.oracle import Trial, try_out
from stacx_core.swe.tasks import read_tasks

EXAMPLES = Path(__file__).parents[3] / "examples" / "swe_tasks"


def test_every_example_is_sound(provider):
    tasks = read_tasks(EXAMPLES)
    trials = try_out(tasks, provider, jobs=2)
    assert len(trials) == 20
    assert [str(trial) for trial in trials if (trial.oracle, trial.empty) != (1.0, 0.0)] == []
    assert len({tuple(task.metadata["tags"]) for task in tasks}) == 20


def test_a_task_that_rewards_nothing_done_is_not_sound(provider, make_task):
    (trial,) = try_out([make_task(test="mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")], provider)
    assert (trial.oracle, trial.empty, trial.sound) == (1.0, 1.0, False)


def test_a_solution_that_fails_is_shown(provider, make_task):
    task = make_task(test="echo wrong number; mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt")
    (task.folder / "solution" / "solve.sh").write_text("echo no such patch >&2; exit 3\n")
    (trial,) = try_out([task], provider)
    said = ("solve.sh ended with exit code 3", "no such patch", "wrong number")
    assert trial.problem == "\n  ".join(f"oracle: {line}" for line in said)


def test_a_task_whose_tests_say_nothing_is_not_sound(provider, make_task):
    (trial,) = try_out([make_task(test="true")], provider)
    assert (trial.oracle, trial.empty, trial.sound) == (None, None, False)
    assert "cannot be read" in str(trial)


def test_what_makes_a_task_sound():
    assert Trial("x", 1.0, 0.5, 1.0).sound
    assert not Trial("x", 0.9, 0.0, 1.0).sound
    assert not Trial("x", None, 0.0, 1.0).sound
    assert str(Trial("x", 1.0, 0.0, 1.25)) == "x: ok (oracle 1, empty 0, 1.2 s)"
