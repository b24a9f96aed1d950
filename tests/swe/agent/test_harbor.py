"""``harbor:FOLDER``: its options, and which tasks are held out."""

from __future__ import annotations

import pytest

from stacx_core.errors import CheckpointError, ConfigError, DataError
from stacx_core.rollout.environments.loading import has_numbered_tasks, load_environment
from stacx_core.rollout.tasks import TaskStream, held_out_tasks, training_task
from stacx_core.swe.agent.harbor import named_tasks


@pytest.fixture
def folder(provider, make_task, tmp_path):
    """A folder of three tasks."""
    for name in ("a", "b", "c"):
        make_task(f"tasks/{name}")
    return tmp_path / "tasks"


def drawn(reference, seeds):
    made = load_environment(reference)
    return [made.task(seed).name for seed in seeds]


def test_without_names_all_tasks_are_for_training(folder):
    assert drawn(f"harbor:{folder}", (0, 2, 4, 6)) == ["a", "b", "c", "a"]
    with pytest.raises(DataError, match="no held-out tasks"):
        drawn(f"harbor:{folder}", (1,))


def test_named_tasks_are_held_out_and_no_others(folder, tmp_path):
    (folder / "held_out.txt").write_text("# hard\nb\n\n")
    assert drawn(f"harbor:{folder}", (0, 2, 4, 1, 3)) == ["a", "c", "a", "b", "b"]
    (tmp_path / "mine.txt").write_text("c\na\n")
    assert drawn(f"harbor:{folder}?held_out={tmp_path}/mine.txt", (0, 1, 3)) == ["b", "c", "a"]


def test_names_as_other_systems_write_them(folder, tmp_path):
    (tmp_path / "mine.txt").write_bytes(b"\xef\xbb\xbfc\r\n  a \r\n")
    assert drawn(f"harbor:{folder}?held_out={tmp_path}/mine.txt", (0, 1, 3)) == ["b", "c", "a"]


def test_no_task_is_left_to_train_on(folder):
    (folder / "held_out.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, match="has no training tasks: all are held out"):
        drawn(f"harbor:{folder}", (0,))


def test_a_pass_over_the_tasks_meets_each_once(folder, host_args):
    (folder / "held_out.txt").write_text("b\n")
    args = host_args(environment=f"harbor:{folder}", num_tasks=2, eval_tasks=1)
    assert has_numbered_tasks(args.environment)
    made = load_environment(args.environment)
    assert [made.task(training_task(args, number, 0).seed).name for number in range(2)] == ["a", "c"]
    assert [made.task(task.seed).name for task in held_out_tasks(args)] == ["b"]


def test_a_run_does_not_go_on_with_other_tasks(folder, host_args):
    args = host_args(environment=f"harbor:{folder}", num_tasks=2)
    state = TaskStream(args).state()
    TaskStream(args).restore(state)
    for change in (
        lambda: (folder / "held_out.txt").write_text("b\n"),
        lambda: (folder / "a" / "tests" / "test.sh").write_text("true\n"),
        lambda: (folder / "c").rename(folder.parent / "c"),
    ):
        change()
        with pytest.raises(CheckpointError, match="the hash of the tasks' files was"):
            TaskStream(args).restore(state)
        state = TaskStream(args).state()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("pol=2", r"no option is called 'pol' \(did you mean 'pool'\?\); there are sandbox, pool, held_out, command_t"),
        ("pool=0", r"pool must be a number above 0 and below 1e\+09, not 0"),
        ("pool=2.5", "pool must be a number above 0"),
        ("command_timeout=soon", "command_timeout must be a number above 0 .*, not 'soon'"),
        ("system=1", "system must be true or false, not 1"),
        ("sandbox=jail", "no sandbox is called 'jail'"),
        ("sandbox=", "no sandbox is called ''"),
        ("pool", "pool must be a number above 0 .*, not ''"),
        ("pool=", "pool must be a number above 0 .*, not ''"),
        ("pool=1&pool=2", "the option 'pool' stands there twice"),
        ("command_timeout=1e400", "command_timeout must be a number above 0 .*, not inf"),
        ("output=1e300", "output must be a number above 0 .*, not 1e"),
        ("pool=1000000", "a pool of 1000000 sandboxes is not possible"),
    ],
)
def test_wrong_options_are_refused(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        load_environment(f"harbor:{folder}?{options}")


def test_options_reach_the_agent(folder):
    made = load_environment(f"harbor:{folder}?pool=2&command_timeout=7&output=50&patience=1&system=false")
    assert made.at_once == 2
    environment = made()
    assert "may take 7 seconds" in environment.reset(0)
    assert environment.step("ls").done
    environment.close()


def test_wrong_names_are_refused(folder, tmp_path):
    names = tmp_path / "names.txt"
    for text, message in (
        ("a\nd\n", "line 2: there is no task 'd'"),
        ("a\na\n", "line 2: task 'a' stands there twice"),
        ("\n", "names no task"),
    ):
        names.write_text(text)
        with pytest.raises(DataError, match=message):
            load_environment(f"harbor:{folder}?held_out={names}")
    with pytest.raises(DataError, match="cannot be read"):
        named_tasks([], tmp_path / "nothing.txt")
    with pytest.raises(DataError, match="there is no folder"):
        load_environment("harbor:nowhere")
    with pytest.raises(ConfigError, match="harbor:FOLDER"):
        load_environment("harbor")
