"""Task folders: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stacx_core.errors import DataError
from stacx_core.swe.tasks import Limits, read_task, read_tasks

FULL = """
version = "1.0"
[metadata]
difficulty = "easy"
tags = ["a"]
[verifier]
timeout_sec = 12.5
env = { MODE = "strict" }
[agent]
timeout_sec = 300
[environment]
build_timeout_sec = 40
docker_image = "python:3.12"
cpus = 2
memory_mb = 512
storage_mb = 256
env = { LANG = "C" }
[solution.env]
FAST = "1"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest task there is."""
    task = tmp_path / "first"
    (task / "tests").mkdir(parents=True)
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (task / "instruction.md").write_text("\nDo it.\n")
    (task / "task.toml").write_text("")
    return task


def test_the_smallest_task(folder):
    task = read_task(folder)
    assert (task.name, task.instruction, task.solution) == ("first", "Do it.", None)
    assert task.limits == Limits(600.0, 600.0, 600.0, 1, 2048, 1024)
    assert task.tests == folder / "tests"


def test_every_value(folder):
    (folder / "task.toml").write_text(FULL)
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("true\n")
    task = read_task(folder)
    assert task.limits == Limits(300.0, 12.5, 40.0, 2, 512, 256)
    assert task.metadata == {"difficulty": "easy", "tags": ["a"]}
    assert (task.env, task.verifier_env, task.solution_env) == ({"LANG": "C"}, {"MODE": "strict"}, {"FAST": "1"})
    assert (task.docker_image, task.solution) == ("python:3.12", folder / "solution")


@pytest.mark.parametrize(("size", "mib"), [("2G", 2048), ("512M", 512), ("1.5g", 1536), ("2048K", 2)])
def test_sizes_with_units(folder, size, mib):
    (folder / "task.toml").write_text(f'[environment]\nmemory = "{size}"\nstorage = "{size}"\n')
    limits = read_task(folder).limits
    assert (limits.memory_mb, limits.storage_mb) == (mib, mib)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agent]\ntimeout_sec = 0", r"agent\.timeout_sec: must be a number of seconds above 0.*not 0"),
        ("[agent]\ntimeout_sec = true", r"agent\.timeout_sec: must be a number.*not True"),
        ("[verifier]\ntimeout_sec = inf", r"verifier\.timeout_sec: .*not inf"),
        ("[verifier]\ntimeout = 3", r"verifier\.timeout: no such key \(did you mean 'timeout_sec'\?\)"),
        ("[environment]\ncpus = 0.5", r"environment\.cpus: must be a whole number from 1 to .*0\.5"),
        ("[environment]\nmemory_mb = -1", r"environment\.memory_mb: .*-1"),
        ('[environment]\nmemory = "much"', r"environment\.memory: must be a size.*'512M' or '2G', not 'much'"),
        ("[environment]\ngpus = 1", r"environment\.gpus: 1 is not possible"),
        ("[environment.env]\nKEY = 3", r"environment\.env\.KEY: must be a text, not 3"),
        ('[verifier.env]\nKEY = "${HOME}"', r"verifier\.env\.KEY: .*no variables of the host"),
        ("agent = 3", r"agent: must be a table, not 3"),
        ("[agnet]\ntimeout_sec = 3", r"agnet: no such key \(did you mean 'agent'\?\)"),
        ("x = ", r"task\.toml is not valid TOML"),
        ("x = " + "[" * 5000, r"task\.toml is not valid TOML"),
        ("x = " + "9" * 5000, r"task\.toml is not valid TOML"),
        ("[agent]\ntimeout_sec = 1e300", r"agent\.timeout_sec: must be a number of seconds above 0 and below 1e\+09"),
        ("[environment]\ncpus = 1e30", r"environment\.cpus: must be a whole number from 1 to 10000000"),
        ('[environment]\nmemory = "' + "9" * 400 + 'G"', r"environment\.memory: must be a size"),
        ('[environment]\nmemory = "2G"\nmemory_mb = 1', r"environment\.memory: says the same as memory_mb"),
        ("[environment.env]\n'A=B' = ''", r"environment\.env\.'A=B': is no name of a variable"),
        ("[verifier.env]\n'A;B' = ''", r"verifier\.env\.'A;B': is no name of a variable"),
        ("[solution.env]\n'' = ''", r"solution\.env\.'': is no name of a variable"),
    ],
)
def test_values_that_are_refused(folder, text, message):
    (folder / "task.toml").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_task(folder)
    assert str(folder / "task.toml") in str(caught.value)


@pytest.mark.parametrize("name", ["instruction.md", "task.toml", "tests/test.sh"])
def test_a_file_that_is_missing(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"it has no {name}"):
        read_task(folder)


def test_an_instruction_that_says_nothing(folder):
    (folder / "instruction.md").write_text(" \n")
    with pytest.raises(DataError, match=r"instruction\.md is empty"):
        read_task(folder)


def test_a_folder_of_tasks(folder):
    (folder.parent / "notes").mkdir()
    assert [task.name for task in read_tasks(folder.parent)] == ["first"]
    assert [task.name for task in read_tasks(folder)] == ["first"]
    with pytest.raises(DataError, match="has no tasks"):
        read_tasks(folder.parent / "notes")
    with pytest.raises(DataError, match="there is no folder"):
        read_tasks(folder / "nowhere")


def test_files_as_other_systems_write_them(folder):
    (folder / "task.toml").write_bytes(b"\xef\xbb\xbf[agent]\r\ntimeout_sec = 5\r\n")
    (folder / "instruction.md").write_bytes(b"\xef\xbb\xbfDo\r\nit.\r\n")
    task = read_task(folder)
    assert (task.limits.agent_timeout, task.instruction) == (5.0, "Do\nit.")


@pytest.mark.parametrize("script", ["tests/test.sh", "solution/solve.sh"])
def test_scripts_that_bash_cannot_read(folder, script):
    (folder / "solution").mkdir()
    (folder / script).write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    with pytest.raises(DataError, match=rf"{script} has Windows line ends"):
        read_task(folder)


@pytest.mark.parametrize(("name", "data"), [("instruction.md", b"a\nb\0"), ("task.toml", b"# a\n\0")])
def test_texts_that_are_none(folder, name, data):
    (folder / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"{name} has a zero byte in line 2"):
        read_task(folder)


@pytest.mark.parametrize("part", ["environment", "solution"])
def test_a_file_in_the_place_of_a_folder(folder, part):
    (folder / part).write_text("")
    with pytest.raises(DataError, match=f"{part} must be a folder"):
        read_task(folder)


@pytest.mark.parametrize("name", ["a\nb", " a", "a ", "#a", "a\x1b[31m", "a\udcff"])
def test_names_that_no_list_can_hold(folder, name):
    other = folder.rename(folder.parent / name)
    with pytest.raises(DataError, match="a task cannot be called"):
        read_task(other)


def test_links_to_tasks_have_names_of_their_own(folder):
    (folder.parent / "second").symlink_to(folder)
    assert [task.name for task in read_tasks(folder.parent)] == ["first", "second"]
